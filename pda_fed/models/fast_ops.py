"""An LSTM and a cross-entropy with hand-written gradients, in TensorFlow.

They compute the same as `tf.keras.layers.LSTM` and TensorFlow's
`sparse_softmax_cross_entropy_with_logits`. On a CPU, a step of the paper's
model takes about half as long with them:

- TensorFlow has one operation for all time steps of an LSTM (`BlockLSTMV2`),
  which Keras does not use. A loop in the graph runs twenty for each step.
- Both add up the gradient of the recurrent kernel over time, step by step. Here
  one product computes it from the stacked gradients of all steps. For small
  kernels, which fit into the cache, TensorFlow's way is faster.
- TensorFlow's cross-entropy is several times slower than its softmax, which
  gives both the loss and its gradient.
"""

import tensorflow as tf

# Up to this many units, TensorFlow's gradient is faster (64: 4.7 against 6.6 ms
# for a batch of 16 sentences; 128: 15.6 against 8.9 ms; two cores).
_FUSED_UNITS = 64


def _stack(time: tf.Tensor, size: int) -> tf.TensorArray:
  return tf.TensorArray(tf.float32, size=time, element_shape=[None, size])


@tf.custom_gradient
def lstm(
  inputs: tf.Tensor,
  kernel: tf.Tensor,
  recurrent_kernel: tf.Tensor,
  bias: tf.Tensor,
):
  """Returns the outputs of an LSTM with a zero initial state.

  Args:
    inputs: [time, batch, features].
    kernel: [features, 4 * units]; input, forget, cell and output gates, in the
      order of Keras.
    recurrent_kernel: [units, 4 * units].
    bias: [4 * units].

  Returns:
    [time, batch, units].
  """
  features, units = kernel.shape[0], recurrent_kernel.shape[0]
  time, batch = tf.shape(inputs)[0], tf.shape(inputs)[1]
  zeros, no_peephole = tf.zeros([batch, units]), tf.zeros([units])
  arguments = dict(
    seq_len_max=tf.cast(time, tf.int64),
    x=inputs,
    cs_prev=zeros,
    h_prev=zeros,
    w=tf.concat([kernel, recurrent_kernel], axis=0),
    b=bias,
    wci=no_peephole,
    wcf=no_peephole,
    wco=no_peephole,
    use_peephole=False,
  )
  states = tf.raw_ops.BlockLSTMV2(cell_clip=0.0, **arguments)
  i, cs, f, o, g, tanh_c, hs = states

  def fused_gradient(d_hs):
    names = ('i', 'cs', 'f', 'o', 'ci', 'co', 'h')
    d_inputs, _, _, d_kernels, _, _, _, d_bias = tf.raw_ops.BlockLSTMGradV2(
      **arguments,
      **dict(zip(names, states, strict=True)),
      cs_grad=tf.zeros_like(cs),
      h_grad=d_hs,
    )
    # TensorFlow does not write these if the batch is empty.
    d_kernels = tf.where(batch > 0, d_kernels, tf.zeros_like(d_kernels))
    d_bias = tf.where(batch > 0, d_bias, tf.zeros_like(d_bias))
    return d_inputs, d_kernels[:features], d_kernels[features:], d_bias

  def gradient(d_hs):
    def before(states):
      return tf.concat([zeros[tf.newaxis], states[:-1]], axis=0)

    # Compute the factors that do not depend on later steps for all steps at
    # once: dz of the first three gates per dc, dc per dh, and dz of the output
    # gate per dh.
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
      tf.matmul(tf.reshape(inputs, [-1, features]), dz, transpose_a=True),
      tf.matmul(flat_before, dz, transpose_a=True),
      tf.reduce_sum(dz, axis=0),
    )

  return (
    tf.ensure_shape(hs, [None, None, units]),
    fused_gradient if units <= _FUSED_UNITS else gradient,
  )


@tf.custom_gradient
def cross_entropy(targets: tf.Tensor, logits: tf.Tensor):
  """Returns the cross-entropy of each row.

  Args:
    targets: The true classes, [rows].
    logits: [rows, classes].

  Returns:
    [rows].
  """
  probabilities = tf.nn.softmax(logits)
  # The log of a target's probability would fail if that underflows. The largest
  # probability is at least one over the number of classes.
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
