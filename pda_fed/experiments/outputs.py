"""What a run leaves behind: one folder, one experiment.

    config.json      every setting, seed, library versions, the data's hash
    metrics.csv      a row for each evaluated round
    result.json      the end: test metrics, epsilon
    checkpoints/     see `checkpoints`
    tensorboard/     the rows once more

TFF has release managers for such files. They are not used: they need TFF, and
this loop runs with the JAX engine where there is none; and their TensorBoard
log would keep the rows that a resumed run writes anew. Here the rows live in
the checkpoints, and both files are written from these.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import sys
from typing import Any, Optional

import pda_fed
from pda_fed import errors as base_errors
from pda_fed import privacy
from pda_fed.common import files
from pda_fed.common import seal
from pda_fed.experiments import checkpoints
from pda_fed.experiments import config as config_lib
from pda_fed.experiments import errors
from pda_fed.experiments import records
from pda_fed.experiments.engines import base as engine_lib

_FORMAT = 'pda_fed run'
CONFIG = 'config.json'
_METRICS = 'metrics.csv'
_RESULT = 'result.json'
_SEEDS = 'secret_seeds.json'
_STOPPED = 'stopped.json'
_RUNNING = 'running.json'
_DIVERGED = 'diverged.json'
_LOCK = '.lock'
# What may lie in a folder that holds no run yet: our lock, and what is left of
# writers that were killed.
_HARMLESS = re.compile(rf'{re.escape(_LOCK)}|\.{re.escape(CONFIG)}\.tmp-\d+')

_LIBRARIES = (
  'dp-accounting',
  'jax',
  'numpy',
  'scipy',
  'tensorflow',
  'tensorflow-federated',
  'tensorflow-privacy',
)

_WITHOUT_NOISE = (
  'Epsilon covers the model. train_loss, clients, non_finite_clients,'
  ' diverged_clients, clipped_fraction and example_norm of metrics.csv and the'
  ' log, warnings about them, and data_hash of config.json are of private data'
  ' without noise: keep them to yourself.'
)


def library_versions() -> dict[str, str]:
  """Returns the versions of Python and of the libraries that matter."""
  versions = {
    'pda_fed': pda_fed.__version__,
    'python': platform.python_version(),
  }
  for name in _LIBRARIES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return versions


def _refuse_file(path: pathlib.Path) -> None:
  if path.exists() and not path.is_dir():
    raise errors.OutputError(f'output_dir {path} is not a folder.')


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """A run's folder.

  Example:

  ```
  folder = train(config, open_engine, 'out/pda')  # A RunFolder.
  folder.read_result()['test']['accuracy']
  ```

  Attributes:
    path: The folder.
  """

  path: pathlib.Path

  @classmethod
  @contextlib.contextmanager
  def open(
    cls,
    path: os.PathLike,
    config: config_lib.RunConfig,
    about: dict[str, Any],
    *,
    change_engine: bool = False,
  ) -> Iterator['RunFolder']:
    """Takes a folder for a run, or for going on with the run that it holds.

    Args:
      path: Made if need be.
      config: The run's settings.
      about: What else config.json should say; JSON values.
      change_engine: Whether a run that was stopped may go on with another
        engine.

    Yields:
      The folder, which no other process can take meanwhile.

    Raises:
      OutputError: If it holds something else, or a run with other settings, or
        one that may not change its engine.
    """
    path = pathlib.Path(path)
    _refuse_file(path)
    path.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
      try:
        stack.enter_context(files.locked(path / _LOCK))
      except BlockingIOError as e:
        raise base_errors.BusyError(
          f'Another process is running the experiment in {path}.'
        ) from e
      folder = cls(path)
      folder.check(config, change_engine=change_engine)
      folder._change_engine(config)
      # Not before: in a folder of others they are not ours.
      files.remove_temporaries(path)
      if folder.is_new():
        files.remove(path / _SEEDS)
        folder._write_config(config, about)
      yield folder

  @property
  def checkpoints_path(self) -> pathlib.Path:
    return self.path / 'checkpoints'

  @property
  def tensorboard_path(self) -> pathlib.Path:
    return self.path / 'tensorboard'

  def check(
    self, config: config_lib.RunConfig, *, change_engine: bool = False
  ) -> None:
    """Raises unless the folder is free for a run, or holds it; writes nothing.

    Args:
      config: The run's settings.
      change_engine: Whether a stopped run may resume on another engine.

    Raises:
      OutputError: If it holds something else, or a run with other settings, or
        one that may not change its engine.
    """
    _refuse_file(self.path)
    if not self.path.exists():
      return
    if not (self.path / CONFIG).exists():
      names = [p.name for p in self.path.iterdir()]
      strangers = [n for n in names if not _HARMLESS.fullmatch(n)]
      if strangers:
        raise errors.OutputError(
          f'output_dir {self.path} must be empty or hold this experiment. Found'
          f' {", ".join(sorted(strangers)[:5])}.'
        )
      return
    old = self.read_config()['settings']
    if self.is_new():
      return
    new = json.loads(json.dumps(config.settings()))
    done = checkpoints.Checkpoints(self.checkpoints_path).last_round() or 0
    if config.plan.rounds < done:
      raise errors.OutputError(
        f'rounds must be at least {done}, which are done in {self.path}. Found'
        f' {config.plan.rounds}.'
      )
    changes = change_engine and old['engine'] != new['engine']
    lines = config_lib.differences(
      {**old, 'engine': new['engine']} if changes else old, new
    )
    if lines:
      only_engine = {**old, 'engine': new['engine']} == new
      raise errors.OutputError(
        f'{self.path} holds a run with other settings: {"; ".join(lines)}. Give'
        ' these settings again, or another --output_dir'
        + (', or --change_engine.' if only_engine else '.')
      )
    if changes:
      self._check_change_of_engine(old['engine'])

  def is_new(self) -> bool:
    """Whether nothing was run: settings, perhaps refused ones, bind nobody.

    The model is saved before the first round, so that no round, and no noise,
    is of these settings.
    """
    names = (_METRICS, _RESULT, _STOPPED)
    return not (
      any(self.checkpoints_path.glob('*'))
      or any((self.path / name).exists() for name in names)
    )

  def _done(self) -> int:
    """The round of the newest whole checkpoint."""
    checkpoint = checkpoints.Checkpoints(self.checkpoints_path).latest()
    return checkpoint.round_num if checkpoint is not None else 0

  def _check_change_of_engine(self, old: str) -> None:
    """Raises if a run on another engine could repeat rounds.

    Engines draw other noise for the same round. Of a run that was killed, some
    rounds after the checkpoint were run, and seen perhaps: running these again
    with other noise would be a second look at their users, which epsilon does
    not cover.
    """
    done = self._done()
    if self._stopped_after() != done:
      raise errors.OutputError(
        f'The run in {self.path} must have been stopped by Ctrl-C or SIGTERM to'
        f' go on with another engine. Found one that was killed or has ended:'
        f' rounds after {done}, where it would go on, may have been run, and'
        f' may not be run again with other noise. Go on with --engine={old},'
        ' and stop that.'
      )

  def _change_engine(self, config: config_lib.RunConfig) -> None:
    """Notes the engine of a run that resumes on another one."""
    if self.is_new():
      return
    content = self.read_config()
    old = content['settings']['engine']
    if old == config.engine:
      return
    engines = content.get('engines', [{'engine': old, 'first_round': 0}])
    engines.append({'engine': config.engine, 'first_round': self._done()})
    content |= {'settings': config.settings(), 'engines': engines}
    files.write_json(self.path / CONFIG, content)

  def first_round_of_engine(self) -> int:
    """Returns the round from which on the run has the engine that it has."""
    engines = self.read_config().get('engines')
    return engines[-1]['first_round'] if engines else 0

  def _stopped_after(self) -> Optional[int]:
    if not (self.path / _STOPPED).exists():
      return None
    return self._read(_STOPPED, records.check_stopped)['round']

  def check_order(self, order: dict[str, Any]) -> None:
    """Raises if rounds may be repeated with sums in another order.

    Of a run that was killed, rounds after the checkpoint were run and perhaps
    seen. Repeated in another order they would have the same noise on other
    last digits, and the difference of both has no noise.

    Args:
      order: What `engine.Engine.order_of_sums` returns.

    Raises:
      OutputError: If the run was killed and had another order.
    """
    before = self.read_config().get('order_of_sums')
    if before == order:
      return
    last = checkpoints.Checkpoints(self.checkpoints_path).last_round()
    was_killed = last is not None and self._stopped_after() != last
    if before is not None and was_killed:
      lines = config_lib.differences(before, order)
      raise errors.OutputError(
        f'The run in {self.path} was killed: rounds after {last} may have been'
        ' run, and must be repeated with sums in the same order. Found'
        f' {"; ".join(lines)}. Resume with the former values (give them as'
        ' flags of these names); after a stop by Ctrl-C or SIGTERM they may'
        ' change.'
      )
    self.write_order(order)

  def write_order(self, order: dict[str, Any]) -> None:
    """Notes the order of sums that rounds have from here on."""
    files.write_json(
      self.path / CONFIG, {**self.read_config(), 'order_of_sums': order}
    )

  def mark_stopped(self, round_num: int) -> None:
    """Notes that no round was run after this one, which is saved.

    Nothing is noted while a process that was killed may have run later ones.

    Args:
      round_num: The round.
    """
    mark = self._running()
    if mark is None or round_num >= mark['seen_before']:
      files.write_json(self.path / _STOPPED, {'round': round_num})
      files.remove(self.path / _RUNNING)

  def mark_running(self, done: int, until: int) -> None:
    """Notes that rounds are run; call it before the first, and after a save.

    Args:
      done: How many rounds are done and saved.
      until: The round after which the next save comes.
    """
    seen = 0
    if self._stopped_after() != done and not self.is_new():
      # This process has saved what it ran; one that was killed has not.
      mark = self._running()
      seen = until if mark is None else max(mark.values())
    seen = seen if seen > done else 0
    files.write_json(
      self.path / _RUNNING, {'until': max(until, seen), 'seen_before': seen}
    )
    files.remove(self.path / _STOPPED)
    files.remove(self.path / _DIVERGED)

  def mark_diverged(self, round_num: int) -> None:
    """Notes that the model left all bounds: the same run would do so again.

    Args:
      round_num: The number of rounds that were done.
    """
    files.write_json(self.path / _DIVERGED, {'round': round_num})

  def has_diverged(self) -> bool:
    """Whether the run ended because its model left all bounds."""
    return (self.path / _DIVERGED).exists()

  def _running(self) -> Optional[dict[str, int]]:
    """Which rounds were run: by this process, and by those before it."""
    if not (self.path / _RUNNING).exists():
      return None
    return self._read(_RUNNING, records.check_running)

  def _write_config(
    self, config: config_lib.RunConfig, about: dict[str, Any]
  ) -> None:
    options = {
      f.name: config_lib.as_settings(getattr(config, f.name))
      for f in dataclasses.fields(config)
      if not f.metadata.get('setting', True)
    }
    content = {
      'format': _FORMAT,
      'version': 1,
      'settings': config.settings(),
      'options': options,
      'noise': privacy.SeedStreams(config.seed).statement(),
      'libraries': library_versions(),
      'command': shlex.join(sys.argv),
      **about,
    }
    if config.seed is None:  # It may be meant for publication.
      content['caveats'] = [*content.get('caveats', []), _WITHOUT_NOISE]
    files.write_json(self.path / CONFIG, content)

  def read_config(self) -> dict[str, Any]:
    """Returns config.json.

    Raises:
      OutputError: If it cannot be read, or is not a run's.
    """
    config = files.read_json(self.path / CONFIG)
    if not isinstance(config, dict) or config.get('format') != _FORMAT:
      raise errors.OutputError(
        f'{self.path / CONFIG} is not of a run: it belongs to something else.'
      )
    return self._read(CONFIG, records.check_config)

  def _read(self, name: str, check: Callable[[Any], None]) -> Any:
    """Returns the content of a JSON file, if it is as it should be."""
    found = files.read_json(self.path / name)
    with self._naming(name):
      check(found)
    return found

  @contextlib.contextmanager
  def _naming(self, name: str) -> Iterator[None]:
    """Turns errors of values into one that names their file."""
    try:
      yield
    except (TypeError, ValueError) as e:
      raise errors.OutputError(f'{self.path / name} is damaged: {e}.') from e

  def seeds(self, seed: Optional[int]) -> privacy.SeedStreams:
    """Returns the run's seeds; a run without a seed keeps its own to resume.

    A round that is run again with fresh noise would be a second look at the
    same users. The file is removed when the run ends.

    Args:
      seed: The run's, or None.

    Raises:
      OutputError: If the run's own are damaged, or gone, or if it has ended.
    """
    if seed is not None:
      return privacy.SeedStreams(seed)
    if (self.path / _RESULT).exists():
      self.forget_seeds()  # Killed just before it, the run has kept them.
      raise errors.OutputError(
        f'The run in {self.path} took no seed and ended without a test. Its'
        ' secrets were removed then, and it cannot be opened again; its weights'
        f' are in {self.checkpoints_path}.'
      )
    path = self.path / _SEEDS
    if path.exists():
      found = files.read_json(path)
      with self._naming(_SEEDS):
        if isinstance(found, dict):
          found = seal.unseal(found)
        return privacy.SeedStreams.from_dict(found)
    if not self.is_new():
      raise errors.OutputError(
        f'{path} is gone, and without it the run cannot go on with the noise'
        ' that it had. Start a new one in another --output_dir.'
      )
    streams = privacy.SeedStreams(None)
    # Sealed: a changed seed is other noise for rounds that were seen.
    files.write_json(path, seal.seal(streams.as_dict()), mode=0o600)
    return streams

  def forget_seeds(self) -> None:
    """Removes the seeds of a run that has ended, and what they gave."""
    if self.read_config()['settings']['seed'] is None:
      saved = checkpoints.Checkpoints(self.checkpoints_path)
      saved.drop(f'{engine_lib.SECRET}/')
    files.remove(self.path / _SEEDS)

  def write_metrics(self, rows: Sequence[dict[str, Any]]) -> None:
    """Writes metrics.csv anew."""
    content = records.format_csv(rows).encode()
    files.write_atomically(self.path / _METRICS, content)

  def read_metrics(self) -> list[dict[str, Optional[float]]]:
    """Returns the rows of metrics.csv, none if there is no such file.

    Raises:
      OutputError: If it is damaged.
    """
    path = self.path / _METRICS
    with self._naming(_METRICS):
      return records.parse_csv(path.read_text('utf-8')) if path.exists() else []

  def write_result(self, result: dict[str, Any]) -> None:
    """Writes result.json: the run has ended."""
    files.write_json(self.path / _RESULT, result)
    files.remove(self.path / _RUNNING)

  def read_result(self) -> Optional[dict[str, Any]]:
    """Returns result.json; None while the run has not ended.

    Raises:
      OutputError: If it is damaged.
    """
    if not (self.path / _RESULT).exists():
      return None
    return self._read(_RESULT, records.check_result)

  def read_finished(self) -> tuple[dict[str, Any], list, dict[str, Any]]:
    """Returns config.json, the rows of metrics.csv and result.json of a run.

    Raises:
      OutputError: If it is not finished, a file is damaged, or one contradicts
        another.
    """
    result = self.read_result()
    if result is None:
      raise errors.OutputError(
        f'{self.path} must hold a finished run. It is not.'
      )
    config = self.read_config()
    with self._naming(_RESULT):
      records.check_fit(config, result)
    rows = self.read_metrics()
    if not rows or rows[-1]['round'] != result['rounds']:
      raise errors.OutputError(
        f'{self.path / _METRICS} must end with round {result["rounds"]}, as'
        f' {_RESULT} says. It does not.'
      )
    return config, rows, result

  def read_plan(self) -> privacy.PrivacyPlan:
    """Returns the plan of config.json.

    Raises:
      OutputError: If there is none that could be.
    """
    fields = dict(self.read_config()['settings']['plan'])
    with self._naming(CONFIG):
      if fields.get('adaptive_clipping') is not None:
        fields['adaptive_clipping'] = privacy.AdaptiveClipping(
          **fields['adaptive_clipping']
        )
      return privacy.PrivacyPlan(**fields)
