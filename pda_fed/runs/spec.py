"""The settings of a run, as data.

A `RunSpec` is what every program passes on: the user's flags and files become
one, `compare` makes others of it, `config.json` holds it. The fields of its
groups are the flags (`groups`, `common.settings`).

    >>> spec = RunSpec.for_data(dataset='digits')
    >>> settings.replace(spec, {'server.learning_rate': 0.2}).plan.clip_norm
    1.0

A spec does not open data. `resolving.resolve` does, and returns the `Run`.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, Optional

from pda_fed.common import settings
from pda_fed.common import validate
from pda_fed.models import convergence
from pda_fed.runs import groups
from pda_fed.runs import tasks

# Settings of which a new value of one removes the other.
_INSTEAD = {
  'rounds': 'epochs',
  'epochs': 'rounds',
  'noise_multiplier': 'target_epsilon',
  'target_epsilon': 'noise_multiplier',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec(settings.Group):
  """All settings of a run.

  Settings that are only for users, for examples (--dataset) or for an engine
  must have their defaults in other runs.

  Example:

    >>> spec = RunSpec.for_data(data_dir='data/laptop')
    >>> spec.server.learning_rate, spec.plan.rounds
    (1.0, 1600)

  Attributes:
    data: Where the examples come from.
    model: The model and its sizes.
    method: The public-data method and its settings.
    plan: Rounds, cohorts, clip and noise.
    client: Local training of users.
    server: The step on the noised mean.
    public: The public update.
    pretraining: The warm start.
    evaluation: When the model is evaluated.
    audit: Canaries.
    execution: What computes the run.
    seed: Seed of everything random; None, for private runs, uses the system's
      entropy.
  """

  data: groups.DataSpec = groups.DataSpec()
  model: settings.Choice = settings.setting(
    settings.Choice(),
    'The model: lstm for text; linear or cnn for arrays; wrn-DEPTH-WIDTH, such'
    ' as wrn-16-4, for images; or a module with a function create_spec(store),'
    ' such as my_package.my_model. Default: the one of the data set; lstm for'
    ' text, cnn for images, linear for tables. --model.NAME sets one of its'
    ' sizes.',
  )
  method: settings.Choice = settings.setting(
    settings.Choice('pda'),
    'The method, or a module that defines one, such as my_package.my_method.'
    ' --method.NAME sets one of its settings.',
  )
  plan: groups.PlanSpec = groups.PlanSpec()
  client: groups.ClientSpec = groups.ClientSpec()
  server: groups.ServerSpec = groups.ServerSpec()
  public: groups.PublicSpec = groups.PublicSpec()
  pretraining: convergence.PretrainingConfig = convergence.PretrainingConfig()
  evaluation: groups.EvaluationSpec = groups.EvaluationSpec()
  audit: groups.AuditSpec = groups.AuditSpec()
  execution: groups.ExecutionSpec = groups.ExecutionSpec()
  seed: Optional[int] = settings.setting(
    None,
    'Random seed. It makes the run repeatable, including its noise, for anyone'
    ' who knows the seed. Leave it out if the run should be private.',
    check=functools.partial(validate.in_range, 0, 2**63 - 1),
  )

  @classmethod
  def for_data(
    cls,
    dataset: Optional[str] = None,
    data_dir: Optional[str] = None,
    **values: Any,
  ) -> 'RunSpec':
    """Returns the default settings of a data set, with some changed.

    Args:
      dataset: A data set for sample-level privacy; None for users.
      data_dir: Where its files, or the users, are.
      **values: See `with_values`; dots in names are written as in
        `**{'server.learning_rate': 0.5}`.
    """
    given = {'dataset': dataset, 'data_dir': data_dir, **values}
    defaults = settings.replace(cls(), tasks.DEFAULTS.get(dataset, {}))
    return defaults.with_values(given)

  def with_values(self, values: Mapping[str, Any]) -> 'RunSpec':
    """Returns a copy with other values, which may settle a choice.

    A value of `epochs` removes `rounds`, and the reverse; the same holds for
    `target_epsilon` and `noise_multiplier`.

    Args:
      values: JSON values by name; see `settings.replace`.
    """
    removed = {
      other: None
      for name, other in _INSTEAD.items()
      if values.get(name) is not None and other not in values
    }
    return settings.replace(self, {**values, **removed})

  @classmethod
  def from_json(cls, content: Any) -> 'RunSpec':
    """Returns the spec of a JSON object; what it leaves out has defaults.

    Args:
      content: As `as_json` returns it.

    Raises:
      TypeError: If a value has the wrong type.
      ValueError: If a name is unknown or a value is invalid.
    """
    values = settings.flatten(content, cls)
    dataset = values.get('dataset')
    spec = cls.for_data(dataset if isinstance(dataset, str) else None)
    return spec.with_values(values)

  def as_json(self, *, only_results: bool = False) -> dict[str, Any]:
    """Returns the spec as JSON values.

    Args:
      only_results: Whether to leave out settings that do not affect results.
    """
    return settings.as_json(self, only_results=only_results)

  @property
  def pretraining_seed(self) -> int:
    """The seed of the warm start."""
    if self.pretraining.seed is not None:
      return self.pretraining.seed
    return self.seed or 0

  def check_scope(self) -> None:
    """Raises ValueError if a setting that has no effect has a value."""
    users = 'users' if self.data.has_users else 'examples'
    for name, leaf in settings.by_name(RunSpec).items():
      applies = leaf.only in (None, users, self.execution.engine)
      if not applies and leaf.of(self) != leaf.default:
        raise ValueError(
          f'{name} must be {leaf.default!r} in this run: it is only for'
          f' {leaf.only}. Found {leaf.of(self)!r}.'
        )
