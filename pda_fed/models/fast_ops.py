"""An LSTM and a cross-entropy with gradients written by hand.

They compute what `tf.keras.layers.LSTM` and TensorFlow's
`sparse_softmax_cross_entropy_with_logits` do. On a CPU a step of the paper's
model takes about half as long with them:

- TensorFlow adds up the gradient of the recurrent kernel over time, step by
  step; here the steps' gradients are stacked first, and one product over all
  of them gives it.
- TensorFlow's cross-entropy is several times as slow as its softmax, from which
  both the loss and its gradient follow.
"""

import tensorflow as tf


def _stack(time: tf.Tensor, size: int) -> tf.TensorArray:
  return tf.TensorArray(tf.float32, size=time, element_shape=[None, size])


@tf.custom_gradient
def lstm(
  inputs: tf.Tensor,
  kernel: tf.Tensor,
  recurrent_kernel: tf.Tensor,
  bias: tf.Tensor,
):
  """The outputs of an LSTM that begins at zero.

  Args:
    inputs: [time, batch, features].
    kernel: [features, 4 * units]; input, forget, cell and output gate, in this
      order, as Keras has them.
    recurrent_kernel: [units, 4 * units].
    bias: [4 * units].

  Returns:
    [time, batch, units].
  """
  features, units = kernel.shape[0], recurrent_kernel.shape[0]
  time, batch = tf.shape(inputs)[0], tf.shape(inputs)[1]
  flat_inputs = tf.reshape(inputs, [-1, features])
  projected = tf.reshape(
    tf.nn.bias_add(tf.matmul(flat_inputs, kernel), bias),
    [time, batch, 4 * units],
  )
  zeros = tf.zeros([batch, units])

  def forward(t, h, c, hs, cs, gates):
    z = projected[t] + tf.matmul(h, recurrent_kernel)
    i, f, g, o = tf.split(z, 4, axis=1)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    c = f * c + i * g
    h = o * tf.tanh(c)
    gate = tf.concat([i, f, g, o], axis=1)
    return t + 1, h, c, hs.write(t, h), cs.write(t, c), gates.write(t, gate)

  stacks = _stack(time, units), _stack(time, units), _stack(time, 4 * units)
  *_, hs, cs, gates = tf.while_loop(
    lambda t, *_: t < time, forward, [0, zeros, zeros, *stacks]
  )
  hs, cs = hs.stack(), cs.stack()

  def gradient(d_hs):
    def before(states):
      return tf.concat([zeros[tf.newaxis], states[:-1]], axis=0)

    i, f, g, o = tf.split(gates.stack(), 4, axis=2)
    tanh_c = tf.tanh(cs)
    # What does not depend on later steps, for all of them at once: dz of the
    # first three gates per dc, dc per dh, and dz of the output gate per dh.
    dz_per_dc = tf.concat(
      [g * i * (1 - i), before(cs) * f * (1 - f), i * (1 - g * g)], axis=2
    )
    dc_per_dh = o * (1 - tanh_c * tanh_c)
    dzo_per_dh = tanh_c * o * (1 - o)
    transposed = tf.transpose(recurrent_kernel)  # Once, not in every product.

    def backward(t, dz, dc, dzs):
      dh = d_hs[t] + tf.matmul(dz, transposed)
      dc += dh * dc_per_dh[t]
      dz = tf.concat(
        [tf.tile(dc, [1, 3]) * dz_per_dc[t], dh * dzo_per_dh[t]], axis=1
      )
      return t - 1, dz, dc * f[t], dzs.write(t, dz)

    *_, dzs = tf.while_loop(
      lambda t, *_: t >= 0,
      backward,
      [time - 1, tf.zeros([batch, 4 * units]), zeros, _stack(time, 4 * units)],
    )
    dz = tf.reshape(dzs.stack(), [-1, 4 * units])
    d_inputs = tf.matmul(dz, kernel, transpose_b=True)
    flat_before = tf.reshape(before(hs), [-1, units])
    return (
      tf.reshape(d_inputs, tf.shape(inputs)),
      tf.matmul(flat_inputs, dz, transpose_a=True),
      tf.matmul(flat_before, dz, transpose_a=True),
      tf.reduce_sum(dz, axis=0),
    )

  return tf.ensure_shape(hs, [None, None, units]), gradient


@tf.custom_gradient
def cross_entropy(targets: tf.Tensor, logits: tf.Tensor):
  """The cross-entropy of each row.

  Args:
    targets: The true classes, [rows].
    logits: [rows, classes].

  Returns:
    [rows].
  """
  probabilities = tf.nn.softmax(logits)
  # The log of a target's probability would lose it where that underflows; the
  # largest probability is at least one over the number of classes.
  log_normalizer = tf.reduce_max(logits, axis=1) - tf.math.log(
    tf.reduce_max(probabilities, axis=1)
  )
  losses = log_normalizer - tf.gather(logits, targets, batch_dims=1)

  def gradient(d_losses):
    rows = tf.range(tf.size(targets, targets.dtype), dtype=targets.dtype)
    d_logits = tf.tensor_scatter_nd_sub(
      probabilities * d_losses[:, tf.newaxis],
      tf.stack([rows, targets], axis=1),
      d_losses,
    )
    return None, d_logits

  return losses, gradient
