r"""Exports the model of a run to a file for other programs.

    python -m scripts.export --run=out/pda --format=npz --output=pda.npz
    python -m scripts.export --run=out/pda --format=tff --output=pda_tff

npz: weights, what inputs need and a description; scripts.predict reads it. tff:
a folder for `tff.learning.models.load_functional_model`. Both export the model
of the newest checkpoint.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from absl import flags
from pda_fed import runs as runs_lib
from pda_fed.runs import model_files
from scripts.lib import trust_flags

_RUN = flags.DEFINE_string(
  'run', None, 'Folder of a run, or a model that was exported as npz.'
)
_FORMAT = flags.DEFINE_enum(
  'format', None, list(model_files.FORMATS), 'Format of the export.'
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'The new file; for --format=tff, the new folder.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  "Folder of the run's data, if it has moved since training.",
  allow_override=True,  # Tests import several programs.
)
flags.adopt_module_key_flags(trust_flags)


def main() -> None:
  """Exports with the flags' settings."""
  for flag in (_RUN, _FORMAT, _OUTPUT):
    if not flag.value:
      raise ValueError(f'--{flag.name} must be given.')
  model = runs_lib.load_model(
    _RUN.value, data_dir=_DATA_DIR.value, trust_code=trust_flags.trusts()
  )
  model_files.export_model(model, _FORMAT.value, _OUTPUT.value)
  print(f'Wrote {_OUTPUT.value}, the model after round {model.round_num:,}.')
  for line in model.privacy:
    print(line)


if __name__ == '__main__':
  cli.run(main)
