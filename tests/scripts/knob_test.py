"""A new setting is one field of a group: its flag, file and search follow."""

import dataclasses
import json

from pda_fed.common import settings
from pda_fed.runs import groups
from pda_fed.runs import records
from pda_fed.runs import spec as spec_lib
import pytest

from tests.scripts import programs

_HELP = 'How warm the server is.'


@pytest.fixture
def knob(monkeypatch):
  """Adds the field `server.warmth`."""

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class ServerSpec(groups.ServerSpec):
    warmth: float = settings.setting(0.5, _HELP)

  @dataclasses.dataclass(frozen=True, kw_only=True)
  class RunSpec(spec_lib.RunSpec):
    server: ServerSpec = ServerSpec()

  # Annotations name the classes of before.
  before = settings.typed.hints
  new = {RunSpec: {'server': ServerSpec}, records.Recorded: {'spec': RunSpec}}
  monkeypatch.setattr(
    settings.typed, 'hints', lambda cls: {**before(cls), **new.get(cls, {})}
  )
  monkeypatch.setattr(spec_lib, 'RunSpec', RunSpec)


@pytest.mark.usefixtures('knob')
def test_a_field_is_a_flag_in_files_and_in_searches(tmp_path):
  for program in ('train', 'compare'):
    helped = programs.run(program, '--help').out
    assert '--server.warmth' in helped and _HELP in helped
  digits = ('--dataset=digits', '--epochs=1', '--seed=0', '--method=cold')
  done = programs.run(
    'train', *digits, '--server.warmth=0.25', f'--output_dir={tmp_path}/run'
  )
  assert done.code == 0, done.err
  config = json.loads((tmp_path / 'run/config.json').read_text())
  assert config['spec']['server']['warmth'] == 0.25
  assert config['settings']['server']['warmth'] == 0.25
  # A file sets it, and the run's folder takes no other value.
  (tmp_path / 'run.json').write_text(json.dumps(config['spec']))
  other = programs.run(
    *('train', f'--config={tmp_path}/run.json', '--server.warmth=1'),
    *('--dry_run', f'--output_dir={tmp_path}/other'),
  )
  assert other.code == 0, other.err
  printed = programs.run(
    *('compare', *digits[:2], '--methods=cold', '--print_runs', '--seeds=1'),
    *('--tune=server.warmth=1,2', f'--output_dir={tmp_path}/compare'),
  )
  assert printed.code == 0, printed.err
  found = [
    json.loads(path.read_text())['server']['warmth']
    for path in sorted((tmp_path / 'compare').glob('tuning/*/cells/*.json'))
  ]
  assert found == [1, 2]


@pytest.mark.usefixtures('knob')
@pytest.mark.parametrize('value', ['hot', 'nan'])
def test_its_type_is_checked(tmp_path, value):
  done = programs.run(
    *('compare', '--dataset=digits', f'--set=pda:server.warmth={value}'),
    f'--output_dir={tmp_path}',
  )
  assert done.code == 2
  assert 'server.warmth must be a finite number' in done.error
