"""Settings of optimizers: what each has, and bad values."""

from pda_fed.common import optimizers
import pytest


@pytest.mark.parametrize('name', optimizers.NAMES)
def test_every_optimizer_has_its_own_settings(name):
  own = optimizers.OptimizerSettings(optimizer=name).values
  given = {setting: value / 2 for setting, value in own.items()}
  settings = optimizers.OptimizerSettings(optimizer=name, **given)
  assert settings.values == given


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    ({'optimizer': 'adm'}, "^optimizer must be .*'adm'. Did you mean adam"),
    ({'learning_rate': 0.0}, '^learning_rate must be positive .* Found 0.0'),
    ({'momentum': 1.0}, r'^momentum must be in \[0, 1\). Found 1.0'),
    ({'optimizer': 'adam', 'beta2': -0.1}, r'^beta2 must be in \[0, 1\)'),
    ({'optimizer': 'yogi', 'epsilon': 0.0}, '^epsilon must be positive'),
    ({'weight_decay': -1.0}, '^weight_decay must be non-negative'),
    (
      {'optimizer': 'adam', 'momentum': 0.9},
      '^momentum must be none with adam, which has beta1, beta2, epsilon.'
      ' Found 0.9.$',
    ),
    ({'epsilon': 0.1}, '^epsilon must be none with sgd'),
  ],
)
def test_bad_values(values, words):
  with pytest.raises(ValueError, match=words):
    optimizers.OptimizerSettings(**values)
