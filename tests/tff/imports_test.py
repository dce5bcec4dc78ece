"""TFF is importable on today's releases, or one line says why not."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


def _run(program: str, **environment) -> subprocess.CompletedProcess:
  inherited = {k: v for k, v in os.environ.items() if not k.startswith('TF_')}
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(program)],
    cwd=_ROOT,
    env=inherited | environment,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def test_importing_pda_fed_imports_none_of_it():
  done = _run("""
    import sys
    import pda_fed
    found = {'tensorflow', 'tensorflow_federated', 'jax'} & set(sys.modules)
    assert not found, found
    """)
  assert (done.returncode, done.stderr) == (0, '')


@pytest.mark.slow
def test_silent_and_with_keras_2():
  done = _run(
    """
    import pda_fed.tff
    import tensorflow_federated as tff
    import tensorflow as tf
    assert tf.keras.Model.__module__.startswith('tf_keras.')
    add = tff.tensorflow.computation(lambda x: x + 1, 'float32')
    print(add(1.0))
    """.replace("'float32'", '__import__("numpy").float32'),
    TF_CPP_MIN_LOG_LEVEL='3',
  )
  assert (done.returncode, done.stdout, done.stderr) == (0, '2.0\n', '')


def test_the_wrong_order_of_imports_is_one_clear_line():
  done = _run("""
    import sys
    sys.modules['tensorflow_federated'] = sys
    import pda_fed.tff
    """)
  assert done.returncode == 1
  last = done.stderr.splitlines()[-1]
  assert last.startswith('ImportError: Import pda_fed.tff before tensorflow')


def test_what_is_not_noise_comes_through():
  done = _run(
    """
    import os
    from pda_fed.tff import _imports
    with _imports._without_noise():
      os.write(2, b'I0000 00:00:1.2 3 port.cc:153] oneDNN is on\\n')
      os.write(2, b'a real problem\\n')
    """,
    TF_CPP_MIN_LOG_LEVEL='3',
  )
  assert (done.returncode, done.stderr) == (0, 'a real problem\n')


@pytest.mark.slow
@pytest.mark.parametrize(
  'before, environment',
  [
    ('import tensorflow as tf; tf.keras.Model', {}),
    ('', {'TF_USE_LEGACY_KERAS': '0'}),
  ],
  ids=['keras 3 was used before', 'keras 3 is asked for'],
)
def test_keras_3_is_one_clear_line(before, environment):
  done = _run(
    f"""
    {before}
    from pda_fed import tff as pda_tff
    """,
    **environment,
    TF_CPP_MIN_LOG_LEVEL='3',
  )
  assert done.returncode == 1
  last = done.stderr.splitlines()[-1]
  assert last.startswith('ImportError: tf.keras must be Keras 2')
  assert 'import pda_fed.tff before' in last


def test_features_that_are_replaced_say_so():
  import pda_fed.tff

  assert pda_fed.tff.build_pda_dpmd
  import tensorflow_federated as tff
  import tensorflow_privacy as tfp

  with pytest.raises(ImportError, match='tff.jax is not available'):
    tff.jax.computation(lambda x: x)
  with pytest.raises(ImportError, match='estimators is not available'):
    tfp.DNNClassifier()
