"""What a public-data method is, once for all engines.

A round of every engine is

    public users -> public update -> [prepare_public] ----+--------+
                                                          v        v
    users -> training -> update -> [before_clip] -> clip -> sum -> [after_noise]
                                                        + noise / qN    |
                                                                        v
                                                             server optimizer

and a method is what happens in the brackets. Public updates depend on public
data and on released models alone, and the clip comes after `before_clip`, so
that no method can change epsilon: one user changes the sum by at most the clip.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar, Literal

from pda_fed import schedules
from pda_fed.methods import arrays

# Methods by name, as classes; a subclass registers itself.
REGISTRY: dict[str, type['Method']] = {}


def setting(default: Any, description: str) -> Any:
  """Returns a field of a method that is also a command-line flag.

  Example: see `SemiDp`.

  Args:
    default: The value where nothing else is given.
    description: The help of the flag.
  """
  return dataclasses.field(
    default=default, metadata={'description': description}
  )


@dataclasses.dataclass(frozen=True)
class _Known(schedules.Schedule):
  """A schedule in a compiled round, where its value is an input."""

  value: Any

  def _alpha(self, t):
    return self.value

  def __call__(self, t):
    return self.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """A public-data method; its fields are its settings.

  Subclass it as a frozen dataclass in a file of its own. `--method=NAME` finds
  the files of this package, and `--method=my_package.my_module` any other.
  Fields of the types float, int, bool and str become flags, `--NAME_FIELD`; a
  `schedules.Schedule` named `alpha` has --alpha_K, --alpha_i, --alpha_constant,
  and one of another name --NAME_FIELD_K, and so on.

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
    colour: Its colour in figures, as matplotlib takes it.
    order: Its place in tables, the smallest first.
    warm_start: Whether training starts at a model pre-trained on public data.
    public: What a round computes from public data: 'none'; 'update', the mean
      update of sampled public users, or the gradient of a public batch; or
      'clipped_update', the mean of their updates, each clipped like a private
      one.
  """

  name: ClassVar[str]
  title: ClassVar[str]
  colour: ClassVar[str] = '0.5'
  order: ClassVar[int] = 100
  warm_start: ClassVar[bool] = True
  public: ClassVar[Literal['none', 'update', 'clipped_update']] = 'none'

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
        f'name must be new. Found {name!r}, the name of {other.__module__}.'
      )
    REGISTRY[name] = cls

  def initial_memory(self, weights: arrays.Update) -> arrays.Update:
    """Returns what `prepare_public` keeps from round to round, at first.

    Args:
      weights: The model's initial weights.
    """
    del weights
    return ()

  def prepare_public(
    self, public: arrays.Update, memory: arrays.Update
  ) -> tuple[arrays.Update, arrays.Update]:
    """Returns what the other functions get as `public`, and the new memory.

    Both are tuples of arrays.

    Args:
      public: The public update at the round's weights, in the private unit.
      memory: The memory, a tuple of arrays; checkpoints keep it.
    """
    return public, memory

  def before_clip(self, update: arrays.Update, public: Any) -> arrays.Update:
    """Changes the update of one client, or example, before the clip.

    Args:
      update: The update of one client: weights before less weights after its
        training; or the gradient of one example.
      public: What `prepare_public` returned.
    """
    del public
    return update

  def after_noise(
    self, mean: arrays.Update, public: Any, t: Any
  ) -> tuple[arrays.Update, Mapping[str, Any]]:
    """Returns what the server optimizer descends, and measurements.

    Args:
      mean: g_t + b_t, the noised mean of the clipped updates.
      public: What `prepare_public` returned; () for a method without.
      t: The round, or at sample level the epoch, from 0; a float.
    """
    del public, t
    return mean, {}

  @property
  def uses_public(self) -> bool:
    """Whether public data take part in each round."""
    return self.public != 'none'

  @property
  def acts_before_clip(self) -> bool:
    """Whether the method changes updates before the clip."""
    return type(self).before_clip is not Method.before_clip

  def schedules_at(self, t: float) -> dict[str, float]:
    """Returns the value of each schedule among the settings.

    Args:
      t: The round, or the epoch.
    """
    return {name: schedule(t) for name, schedule in self.schedules.items()}

  def with_schedules_at(self, values: Mapping[str, Any]) -> 'Method':
    """Returns the method with schedules that have these values.

    A schedule is a function in Python. Engines compute its values before a
    compiled round, and hand them in.

    Args:
      values: By field, as `schedules_at` names them.
    """
    known = {name: _Known(value) for name, value in values.items()}
    return dataclasses.replace(self, **known)

  @property
  def schedules(self) -> dict[str, schedules.Schedule]:
    """The schedules among the settings, by field."""
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
  """Takes a method's step at the server, and measures it.

  Example: see `PdaDpmd`.

  Args:
    method: The method.
    mean: The noised mean.
    t: The round, or the epoch.
    public: The public update; () for a method without.
    prepared: What `prepare_public` made of it.

  Returns:
    What the server optimizer descends, and measurements.
  """
  private_norm = arrays.norm(mean)
  if not method.uses_public:
    return mean, {'private_norm': private_norm}
  update, measured = method.after_noise(mean, prepared, t)
  public_norm = arrays.norm(public)
  scale = private_norm * public_norm
  safe = arrays.where(scale > 0, scale, scale + 1)
  return update, {
    **measured,
    'private_norm': private_norm,
    'public_norm': public_norm,
    'mixed_norm': arrays.norm(update),
    'cosine': arrays.dot(mean, public) / safe,
  }
