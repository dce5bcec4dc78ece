"""What decides a run's numbers, as JSON values."""

import dataclasses

from pda_fed import methods
from pda_fed import models
from pda_fed import schedules
from pda_fed.runs import config as config_lib


def test_settings_of_methods_are_named_as_their_flags():
  alpha = schedules.cosine(3)
  assert config_lib.method_settings(methods.PdaDpmd(alpha=alpha)) == {
    'alpha': {'K': 3, 'kind': 'cosine'}
  }
  assert config_lib.method_settings(methods.SemiDp(weight=0.1)) == {
    'semi_dp_weight': 0.1
  }
  assert config_lib.method_settings(methods.Dope()) == {}


def test_models_of_users_are_told_apart():
  def make(name):
    fields = [('units', int)]
    bases, body = (models.ModelSpec,), {'jax_model': lambda self: None}
    made = dataclasses.make_dataclass(
      name, fields, bases=bases, namespace=body, frozen=True
    )
    return config_lib.as_settings(made(units=3))

  assert make('A') != make('B')
  # Of ours, only fields count, as they did when these runs were recorded.
  assert set(config_lib.as_settings(models.RecurrentSpec())) == {
    'num_words',
    'embedding_size',
    'lstm_size',
  }
