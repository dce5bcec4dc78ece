"""What the tests share."""

import importlib.metadata
import os
import pathlib
import signal

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# Compiling takes most of the time of these tests: compile quickly, and keep the
# compiled programs for the next run.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
os.environ.setdefault(
  'JAX_COMPILATION_CACHE_DIR',
  str(pathlib.Path(__file__).resolve().parents[1] / 'build/jax_cache'),
)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')

# XLA compiles faster without its fusion emitters. Other versions may not know
# the flag, and XLA ends a process that has a flag it does not know.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  _FLAG = '--xla_cpu_use_fusion_emitters'
  _FLAGS = os.environ.get('XLA_FLAGS', '')
  if _FLAG not in _FLAGS:
    os.environ['XLA_FLAGS'] = f'{_FLAGS} {_FLAG}=false'.strip()

import hypothesis

# A busy machine is no reason to fail.
hypothesis.settings.register_profile(
  'patient',
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile('patient')

# A shell starts programs in the background with SIGINT ignored, which programs
# inherit: tests of Ctrl-C would then fail for no fault of ours.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
  """Flags of tests/fuzz; here, since pytest asks no folder below for flags."""
  parser.addoption(
    '--fuzz_cases', type=int, default=500, help='Cases of each fuzz target.'
  )
  parser.addoption(
    '--fuzz_seed', type=int, default=0, help='Of the first fuzz case.'
  )
