r"""Trains a model on the users of a store: text, images or tables.

    python -m scripts.train_stackoverflow --data_dir=data/stackexchange \
        --flagfile=scripts/presets/stackexchange.flags --method=pda \
        --output_dir=out/pda

The defaults of rounds, cohort, batch size, noise and alpha are the paper's for
StackOverflow. The learning rates and the clip norm are values of its grids: the
paper does not say which values were best, and names no momentum. To resume a
run that was stopped by Ctrl-C or a crash, give the same command again. The
program writes config.json, metrics.csv, result.json, checkpoints/ and
tensorboard/ to --output_dir.
"""

from scripts.lib import cli  # First: it silences TensorFlow.

# isort: split
from absl import flags
import data_prep
from data_prep import summary
from pda_fed import runs as runs_lib
from pda_fed import schedules
from pda_fed.common import server_optimizers
from pda_fed.runs.engines import stores
from scripts.lib import method_flags
from scripts.lib import model_flags
from scripts.lib import plan_flags
from scripts.lib import run_flags

_ENGINE = flags.DEFINE_enum(
  'engine', 'tff', list(runs_lib.ENGINES), 'Engine that computes the run.'
)
_CLIENT_LEARNING_RATE = flags.DEFINE_float(
  'client_learning_rate', 0.5, "Learning rate of the clients' local SGD."
)
_CLIENT_GRADIENT_CLIP = flags.DEFINE_float(
  'client_gradient_clip',
  None,
  'Bound on the norm of each gradient in local training. It keeps clients from'
  ' diverging. Default: none. It does not affect epsilon.',
)
_SERVER_OPTIMIZER = flags.DEFINE_enum(
  'server_optimizer',
  'sgd',
  list(server_optimizers.NAMES),
  'Optimizer that applies the noised mean to the model. adam and yogi use'
  ' --server_momentum as beta_1, and need learning rates near 0.01.',
)
_SERVER_LEARNING_RATE = flags.DEFINE_float(
  'server_learning_rate', 1.0, "Learning rate of the server's optimizer."
)
_SERVER_MOMENTUM = flags.DEFINE_float(
  'server_momentum', 0.9, "Momentum of the server's optimizer."
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 16, 'Batch size of local training, in examples.'
)
_PUBLIC_UPDATE = flags.DEFINE_enum(
  'public_update',
  'local_training',
  ['local_training', 'gradient'],
  'local_training: the mean model delta of sampled public users. gradient: one'
  ' step on public_users_per_round * batch_size sentences of all public users.',
)
_PUBLIC_USERS_PER_ROUND = flags.DEFINE_integer(
  'public_users_per_round', 10, 'Number of public users sampled in a round.'
)
_MEAN_CLIP_NORM = flags.DEFINE_float(
  'mean_clip_norm', None, 'Bound on the norm of the noised mean. Default: none.'
)
_MAX_CONCURRENT_CLIENTS = flags.DEFINE_integer(
  'max_concurrent_clients',
  None,
  'Number of users that the TFF engine simulates at a time. Default: the'
  ' number of cores.',
)
_COMPUTE_DTYPE = flags.DEFINE_enum(
  'compute_dtype',
  'float32',
  ['float32', 'bfloat16'],
  'Data type of matrix products in the JAX engine.',
)
_CLIENTS_PER_CHUNK = flags.DEFINE_integer(
  'clients_per_chunk',
  None,
  'Number of clients that the JAX engine trains side by side.',
)
_PLATFORM = flags.DEFINE_enum(
  'platform',
  None,
  ['cpu', 'gpu'],
  'Platform of the JAX engine. Default: chosen by JAX.',
)
flags.adopt_module_key_flags(model_flags)
flags.adopt_module_key_flags(plan_flags)
flags.adopt_module_key_flags(run_flags)
# Values of the paper's StackOverflow runs. Its grid has two clips; this is the
# smaller one.
_NOISE_MULTIPLIER = 0.4
_ALPHA = 5.0
_PLAN = {'expected_cohort': 100.0, 'rounds': 1600, 'clip_norm': 0.3}


def _config(store: data_prep.UserStore) -> runs_lib.FederatedConfig:
  with plan_flags.named_as_flags():
    plan = run_flags.plan_with_noise(
      _NOISE_MULTIPLIER,
      population=len(store.users('private')),
      **(_PLAN | plan_flags.settings()),
    )
  if plan.mechanism == 'tree' and _ENGINE.value != 'tff':
    raise ValueError(
      '--sampling=epochs must be used with --engine=tff. Found'
      f' --engine={_ENGINE.value}.'
    )
  return runs_lib.FederatedConfig(
    **run_flags.loop_settings(),
    dataset=store.manifest['source'],
    data_dir=str(store.path),
    data_hash=stores.data_hash(store),
    engine=_ENGINE.value,
    plan=plan,
    spec=model_flags.spec_for(store),
    method=method_flags.build(
      schedules.for_stackoverflow(_ALPHA, plan.rounds), plan.rounds
    ),
    client_learning_rate=_CLIENT_LEARNING_RATE.value,
    client_gradient_clip=_CLIENT_GRADIENT_CLIP.value,
    server_optimizer=_SERVER_OPTIMIZER.value,
    server_learning_rate=_SERVER_LEARNING_RATE.value,
    server_momentum=_SERVER_MOMENTUM.value,
    batch_size=_BATCH_SIZE.value,
    public_update=_PUBLIC_UPDATE.value,
    public_users_per_round=_PUBLIC_USERS_PER_ROUND.value,
    public_clip_norm=run_flags.public_clip_norm(),
    mean_clip_norm=_MEAN_CLIP_NORM.value,
    max_concurrent_clients=_MAX_CONCURRENT_CLIENTS.value,
    compute_dtype=_COMPUTE_DTYPE.value,
    clients_per_chunk=_CLIENTS_PER_CHUNK.value,
    platform=_PLATFORM.value,
  )


def _about(store: data_prep.UserStore) -> dict[str, object]:
  manifest = store.manifest
  caveats = list(manifest.get('classes', {}).get('caveats', ()))
  words = dict(manifest.get('vocabulary', {}))
  words.pop('unknown_share', None)  # It counts words of private users.
  if not words.get('covered_by_epsilon', True):
    caveats.append(f'Vocabulary: {words["statement"]}')
  drawn = summary.describe_drawn_users(manifest)
  caveats += [drawn] if drawn else []
  most = manifest['max_private_users_per_person']
  if most > 1:
    caveats.append(
      f'One person may be {most} private users. For persons, the guarantee is'
      f' that of groups of {most} users.'
    )
  about = ('source', 'settings', 'public_users_sha256')
  return {
    'data': {
      'users': {g: len(store.users(g)) for g in store.groups},
      **{name: manifest[name] for name in about},
      **({'vocabulary': words} if words else {}),
    },
    'caveats': caveats,
  }


def main() -> None:
  """Runs with the flags' settings."""
  run_flags.require(run_flags.OUTPUT_DIR)
  store = data_prep.open_store(run_flags.require(plan_flags.DATA_DIR))
  config = _config(store)
  stores.open_checked(config)  # Before anything is written.
  run_flags.run(config, runs_lib.open_engine, _about(store))


if __name__ == '__main__':
  cli.run(main)
