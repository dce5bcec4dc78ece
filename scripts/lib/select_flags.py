"""--select_by, the metric by which sweep, --tune and compare choose."""

from absl import flags
from scripts.lib import job_flags

SELECT_BY = flags.DEFINE_string(
  'select_by',
  'loss',
  'The metric that chooses: settings by validation data, the winner of a'
  ' comparison by the test. loss, perplexity, accuracy (for text, over known'
  ' words) or accuracy_with_oov (over all tokens).',
)


def metric() -> str:
  """Returns --select_by.

  Raises:
    ValueError: If the training binary is one of ours and has no such metric.
  """
  job_flags.check_metrics([SELECT_BY.value], SELECT_BY.name)
  return SELECT_BY.value
