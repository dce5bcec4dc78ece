"""Optimizers of TFF, from the settings that all engines share."""

from pda_fed.common import optimizers
import tensorflow_federated as tff

# What our settings are called there.
_NAMES = {
  'beta1': 'beta_1',
  'beta2': 'beta_2',
  'initial_accumulator': 'initial_preconditioner_value',
}


def build_optimizer(
  settings: optimizers.OptimizerSettings,
) -> tff.learning.optimizers.Optimizer:
  """Returns an optimizer that steps as `pda_jax.build_optimizer`'s.

  Example:

    >>> optimizer = build_optimizer(optimizers.OptimizerSettings())
    >>> isinstance(optimizer, tff.learning.optimizers.Optimizer)
    True

  Args:
    settings: Its name, rate and other settings.

  Raises:
    ValueError: If it has weight decay, which most of TFF do not have.
  """
  name, rate = settings.optimizer, settings.learning_rate
  values = {_NAMES.get(n, n): v for n, v in settings.values.items()}
  if settings.weight_decay:
    raise ValueError(
      f'weight_decay must be 0 in TFF. Found {settings.weight_decay}.'
    )
  if name == 'sgd':
    # A momentum of 0 would keep a useless copy of the model.
    return tff.learning.optimizers.build_sgdm(rate, values['momentum'] or None)
  return getattr(tff.learning.optimizers, f'build_{name}')(rate, **values)
