"""--select_by, the metric by which sweep and compare choose."""

from absl import flags
from scripts.lib import job_flags

SELECT_BY = flags.DEFINE_string(
  'select_by',
  'loss',
  'Metric that decides which settings are best (on validation data) and which'
  ' method is best (on test data): loss, perplexity, accuracy (for text, over'
  ' known words) or accuracy_with_oov (over all tokens).',
)


def metric() -> str:
  """Returns --select_by.

  Raises:
    ValueError: If a training binary in scripts/ does not report it.
  """
  job_flags.check_metrics([SELECT_BY.value], SELECT_BY.name)
  return SELECT_BY.value
