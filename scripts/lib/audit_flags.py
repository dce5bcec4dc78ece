"""Flags of an audit, for training and comparisons."""

from typing import Optional

from absl import flags
from pda_fed import audit


class _Parser(flags.ArgumentParser):
  """Parses --audit, --audit=copy and --noaudit."""

  syntactic_help = '--[no]audit, or --audit=copy'

  def parse(self, argument: str) -> Optional[str]:
    """Returns 'run', 'copy' or None."""
    values = {'true': 'run', 'run': 'run', 'copy': 'copy', 'false': None}
    if argument not in values:
      raise ValueError(
        f'must be given without a value, or be copy. Found {argument!r}'
      )
    return values[argument]


_AUDIT = flags.DEFINE_flag(
  flags.Flag(
    _Parser(),
    flags.ArgumentSerializer(),
    'audit',
    None,
    'Add canaries to the run, and measure what it leaks, to compare with the'
    ' proven epsilon. --audit=copy leaves the run unchanged and audits a'
    ' second copy of it.',
    boolean=True,
  )
)
_CANARIES = flags.DEFINE_integer(
  'audit_canaries',
  None,
  'Number of canaries of the audit. Default: 1000, or as many as the model has'
  ' room for.',
)
# Names of these flags.
NAMES = ('audit', 'audit_canaries')


def build() -> Optional[audit.AuditConfig]:
  """Returns the audit that the flags ask for; None for no audit.

  Raises:
    ValueError: If there are too few canaries, or --audit is missing.
  """
  if _AUDIT.value is None:
    if _CANARIES.value is not None:
      raise ValueError('--audit_canaries must be given with --audit.')
    return None
  count = {} if _CANARIES.value is None else {'canaries': _CANARIES.value}
  return audit.AuditConfig(copy=_AUDIT.value == 'copy', **count)


def arguments() -> list[str]:
  """Returns these flags as arguments for the runs of a comparison."""
  config = build()
  if config is None:
    return []
  found = [f'--audit={"copy" if config.copy else "run"}']
  if config.canaries is not None:
    found.append(f'--audit_canaries={config.canaries}')
  return found
