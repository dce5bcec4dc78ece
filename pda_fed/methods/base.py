"""The base class of public-data methods, shared by all engines.

In every engine, a round is

    public users -> public update -> [prepare_public] ----+--------+
                                                          v        v
    users -> training -> update -> [before_clip] -> clip -> sum -> [after_noise]
                                                        + noise / qN    |
                                                                        v
                                                             server optimizer

and a method supplies the steps in brackets. Public updates depend only on
public data and on released models, and clipping comes after `before_clip`. So
no method can change epsilon: one user changes the sum by at most the clipping
norm.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

from pda_fed import schedules
from pda_fed.methods import arrays

# Method classes by name; subclasses register themselves.
REGISTRY: dict[str, type['Method']] = {}


def setting(default: Any, description: str) -> Any:
  """Returns a field of a method that is also a command-line flag.

  Example: see `SemiDp`.

  Args:
    default: The default value.
    description: The help text of the flag.
  """
  return dataclasses.field(
    default=default, metadata={'description': description}
  )


@dataclasses.dataclass(frozen=True)
class _Known:
  """A schedule with a given value, which is an input of a compiled round."""

  value: Any

  def __call__(self, t):
    return self.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """A public-data method; its fields are its settings.

  Subclass it as a frozen dataclass in its own file. `--method=NAME` finds
  methods of this package, and `--method=my_package.my_module` any other method.
  Fields of type float, int, bool and str become flags, `--NAME_FIELD`. A field
  that is a function of t is a schedule. A `schedules.Schedule` named `alpha`
  has the flags --alpha_K, --alpha_i and
  --alpha_constant; one with another name has --NAME_FIELD_K, and so on.

  Example:

    >>> class HalfPublic(Method):
    ...   name = 'half_public'
    ...   title = 'half public'
    ...   public = 'update'
    ...
    ...   def after_noise(self, mean, public, t):
    ...     return arrays.mix(mean, public, 0.5), {}
    >>> _ = REGISTRY.pop('half_public')

  Attributes:
    name: The method's name in flags and results.
    title: Its name in tables and figures.
    warm_start: Whether training starts from a model pre-trained on public data.
    public: What a round computes from public data: 'none'; 'update', the mean
      update of sampled public users, or the gradient of a public batch; or
      'clipped_update', the mean of their updates, each clipped like a private
      one.
    measured: The names of the measurements that `after_noise` returns, besides
      those of schedules. They become columns of metrics.csv.
  """

  name: ClassVar[str]
  title: ClassVar[str]
  warm_start: ClassVar[bool] = True
  public: ClassVar[Literal['none', 'update', 'clipped_update']] = 'none'
  measured: ClassVar[tuple[str, ...]] = ()

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    name = getattr(cls, 'name', None)
    if name is None:
      return
    hooks = ('prepare_public', 'before_clip', 'after_noise')
    own = [h for h in hooks if getattr(cls, h) is not getattr(Method, h)]
    if own and cls.public == 'none':
      raise ValueError(
        f"public of {cls.__qualname__} must be 'update' or 'clipped_update',"
        f" since it has {', '.join(own)}. Found 'none'."
      )
    other = REGISTRY.get(name, cls)
    if other.__module__ != cls.__module__:
      raise ValueError(
        f'name must be unique. Found {name!r}, the name of {other.__module__}.'
      )
    REGISTRY[name] = cls

  def initial_memory(self, weights: arrays.Update) -> arrays.Update:
    """Returns the initial memory of `prepare_public`.

    Args:
      weights: The model's initial weights.
    """
    del weights
    return ()

  def prepare_public(
    self, public: arrays.Update, memory: arrays.Update
  ) -> tuple[arrays.Update, arrays.Update]:
    """Returns the `public` argument of the other functions and the new memory.

    Both are tuples of arrays.

    Args:
      public: The public update at the round's weights, scaled like private
        ones.
      memory: The memory, a tuple of arrays; checkpoints keep it.
    """
    return public, memory

  def before_clip(self, update: arrays.Update, public: Any) -> arrays.Update:
    """Changes the update of one client or example before it is clipped.

    Args:
      update: The update of one client (weights before training minus weights
        after), or the gradient of one example.
      public: The result of `prepare_public`.
    """
    del public
    return update

  def after_noise(
    self, mean: arrays.Update, public: Any, t: Any
  ) -> tuple[arrays.Update, Mapping[str, Any]]:
    """Returns the update for the server optimizer, and measurements by name.

    Args:
      mean: g_t + b_t, the noised mean of the clipped updates.
      public: The result of `prepare_public`; () if the method uses no public
        data.
      t: The index of the round, or at sample level of the epoch, as a float.
    """
    del public, t
    return mean, {}

  @property
  def uses_public(self) -> bool:
    """Whether each round uses public data."""
    return self.public != 'none'

  @property
  def acts_before_clip(self) -> bool:
    """Whether the method changes updates before clipping."""
    return type(self).before_clip is not Method.before_clip

  def schedules_at(self, t: float) -> dict[str, float]:
    """Returns the value of each schedule among the settings.

    Args:
      t: The round, or the epoch.
    """
    return {name: float(at(t)) for name, at in self.schedules.items()}

  def with_schedules_at(self, values: Mapping[str, Any]) -> 'Method':
    """Returns the method with schedules that have these values.

    Schedules are Python functions. Engines evaluate them before a compiled
    round and pass in the values.

    Args:
      values: Values by field name, as returned by `schedules_at`.
    """
    known = {name: _Known(value) for name, value in values.items()}
    return dataclasses.replace(self, **known)

  @property
  def schedules(self) -> dict[str, schedules.Schedule]:
    """The schedules among the settings, by field name."""
    values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {
      name: value
      for name, value in values.items()
      if isinstance(value, schedules.Schedule)
    }


def server_step(
  method: Method,
  mean: arrays.Update,
  t: Any,
  public: arrays.Update = (),
  prepared: Any = (),
) -> tuple[arrays.Update, dict[str, Any]]:
  """Applies a method at the server, and measures its effect.

  Example: see `PdaDpmd`.

  Args:
    method: The method.
    mean: The noised mean.
    t: The round, or the epoch.
    public: The public update; () if the method uses no public data.
    prepared: The result of `prepare_public`.

  Returns:
    The update for the server optimizer, and measurements.
  """
  private_norm = arrays.norm(mean)
  if not method.uses_public:
    return mean, {'private_norm': private_norm}
  update, measured = method.after_noise(mean, prepared, t)
  public_norm = arrays.norm(public)
  scale = private_norm * public_norm
  safe = arrays.namespace(scale).where(scale > 0, scale, scale + 1)
  return update, {
    **measured,
    'private_norm': private_norm,
    'public_norm': public_norm,
    'mixed_norm': arrays.norm(update),
    'cosine': arrays.dot(mean, public) / safe,
  }
