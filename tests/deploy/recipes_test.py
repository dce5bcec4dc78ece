"""Recipes for clusters: their structure, and flags that exist."""

import pathlib
import re
import shlex
import stat
import subprocess

import pytest
import yaml

from tests.scripts import programs

_ROOT = pathlib.Path(__file__).parents[2]
_DEPLOY = _ROOT / 'deploy'
_MANIFESTS = sorted(_DEPLOY.glob('kubernetes/*.yaml'))
_BATCHES = sorted(_DEPLOY.glob('slurm/*.sbatch'))
_RUNS = [_DEPLOY / 'kubernetes/run.yaml', _DEPLOY / 'slurm/run.sbatch']


def _manifest(name):
  found = yaml.safe_load_all((_DEPLOY / 'kubernetes' / name).read_text())
  return {document['kind']: document for document in found}


def _pod(job):
  return job['spec']['template']['spec']


def _srun(path):
  """The words of the command that a batch script starts."""
  text = path.read_text().replace('\\\n', ' ')
  (line,) = [x for x in text.splitlines() if x.startswith('exec srun ')]
  return shlex.split(line)[2:]


def _words(path):
  """A recipe's module and its arguments."""
  if path.suffix == '.yaml':
    job = _manifest(path.name)['Job']
    (container,) = _pod(job)['containers']
    module, *arguments = container['args']
  else:
    words = _srun(path)
    module, *arguments = words[words.index('-m') + 1 :]
    arguments = [word for word in arguments if word != '$@']
  return module, arguments


def _known_flags(module):
  """The flags of a program, as its help shows them."""
  helped = programs.run(module.removeprefix('scripts.'), '--help').out
  found = re.findall(r'^ +--(?:\[no\])?([\w.]+):', helped, re.MULTILINE)
  return {'flagfile', *found}


@pytest.mark.parametrize('path', _RUNS, ids=lambda p: p.name)
def test_programs_flags_and_presets_exist(path):
  module, arguments = _words(path)
  assert (_ROOT / f'{module.replace(".", "/")}.py').exists()
  flags = [word for word in arguments if word != '--']
  assert len(flags) > 4
  names = {re.fullmatch(r'--([\w.]+)(=.+)?', word)[1] for word in flags}
  assert names - _known_flags(module) == set()
  for word in flags:
    if word.startswith('--flagfile='):
      assert (_ROOT / word.partition('=')[2]).exists()


def test_one_run_over_pods():
  found = _manifest('run.yaml')
  job, service = found['Job'], found['Service']
  name = job['metadata']['name']
  assert job['spec']['completionMode'] == 'Indexed'
  assert service['spec']['clusterIP'] == 'None'  # Headless: names for pods.
  assert service['spec']['selector'] == {'job-name': name}
  assert _pod(job)['subdomain'] == service['metadata']['name']
  arguments = dict(word.split('=') for word in _words(_MANIFESTS[0])[1][2:])
  (port,) = service['spec']['ports']
  host = f'{name}-0.{service["metadata"]["name"]}'
  assert arguments['--coordinator'] == f'{host}:{port["port"]}'
  assert arguments['--host_index'] == '$(JOB_COMPLETION_INDEX)'
  number = int(arguments['--num_hosts'])
  assert job['spec']['completions'] == job['spec']['parallelism'] == number


_LINES = """--rate=1 --output_dir=out/1
'--note=two words, it'"'"'s' --output_dir=out/2
"""


def _started(command, folder, **environment):
  """The words after the module that a recipe's command starts."""
  for name in ('python', 'srun'):
    (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / name).chmod(0o755)
  done = subprocess.run(
    command,
    env={'PATH': f'{folder}:/usr/bin:/bin', **environment},
    cwd=folder,
    capture_output=True,
    text=True,
    check=True,
  )
  words = done.stdout.splitlines()
  assert words[words.index('-m') + 1] == 'scripts.train'
  return words[words.index('-m') + 2 :]


def test_a_job_of_an_array_makes_its_run(tmp_path):
  (tmp_path / 'runs.txt').write_text(_LINES)
  recipe = str(_DEPLOY / 'slurm/sweep.sbatch')
  command = ['bash', recipe, 'runs.txt']
  found = _started(command, tmp_path, SLURM_ARRAY_TASK_ID='2')
  assert found == ["--note=two words, it's", '--output_dir=out/2']


def test_a_pod_of_a_sweep_makes_its_run(tmp_path):
  job = _manifest('sweep.yaml')['Job']
  assert job['spec']['completionMode'] == 'Indexed'
  (container,) = _pod(job)['containers']
  (mount,) = container['volumeMounts']
  *shell, line = container['command']
  runs = tmp_path / 'runs.txt'
  runs.write_text(_LINES)
  assert f'{mount["mountPath"]}/out/runs.txt' in line
  line = line.replace('/shared/out/runs.txt', str(runs))
  # Kubernetes puts variables in place of $(NAME), and $( in place of $$(.
  line = line.replace('$$(', '$(')
  found = _started([*shell, line], tmp_path, JOB_COMPLETION_INDEX='1')
  assert found == ["--note=two words, it's", '--output_dir=out/2']


@pytest.mark.parametrize('path', _MANIFESTS, ids=lambda p: p.name)
def test_pods_that_end_are_not_started_for_nothing(path):
  (job,) = [
    d for d in yaml.safe_load_all(path.read_text()) if d['kind'] == 'Job'
  ]
  assert _pod(job)['restartPolicy'] == 'Never'  # podFailurePolicy needs it.
  (container,) = _pod(job)['containers']
  rule = job['spec']['podFailurePolicy']['rules'][0]
  assert rule['action'] == 'FailJob'
  assert rule['onExitCodes']['containerName'] == container['name']
  assert 2 in rule['onExitCodes']['values']
  containers = [container, *_pod(job).get('initContainers', ())]
  names = {volume['name'] for volume in _pod(job)['volumes']}
  assert {m['name'] for c in containers for m in c['volumeMounts']} == names


@pytest.mark.parametrize('path', _BATCHES, ids=lambda p: p.name)
def test_batches_start_one_process_on_each_host(path):
  text = path.read_text()
  assert text.startswith('#!/bin/bash\n')
  done = subprocess.run(['bash', '-n', str(path)], check=False)
  assert done.returncode == 0
  options = re.findall(r'^#SBATCH --([\w-]+)=(\S+)$', text, re.MULTILINE)
  assert text.count('#SBATCH') == len(options)
  assert dict(options)['ntasks-per-node'] == '1'
  assert dict(options)['signal'].startswith('TERM@')
  # SLURM reads no option after the first command.
  assert text.rindex('#SBATCH') < text.index('set -eu')


@pytest.mark.parametrize(
  'gpus, expected', [('', ''), ('0', ''), ('1', '0'), ('4', '0,1,2,3')]
)
def test_a_run_has_all_gpus_of_its_hosts(tmp_path, gpus, expected):
  (tmp_path / 'srun').write_text(
    '#!/bin/sh\necho "$JAX_LOCAL_DEVICE_IDS"; shift 3; echo "$@"\n'
  )
  (tmp_path / 'srun').chmod(0o755)
  environment = {'PATH': f'{tmp_path}:/usr/bin:/bin'}
  if gpus:
    environment['SLURM_GPUS_ON_NODE'] = gpus
  done = subprocess.run(
    ['bash', str(_DEPLOY / 'slurm/run.sbatch'), '--rounds=7'],
    env=environment,
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=True,
  )
  devices, command = done.stdout.splitlines()
  assert devices == expected
  assert command.startswith('scripts.train --engine=jax')
  assert command.endswith(' --rounds=7')


def test_a_job_makes_its_secret_once(tmp_path):
  for name, text in (
    ('srun', 'true'),
    ('openssl', 'shift 2; echo "$1$RANDOM"'),
  ):
    (tmp_path / name).write_text(f'#!/bin/bash\n{text}\n')
    (tmp_path / name).chmod(0o755)
  found = []
  for _ in range(2):
    subprocess.run(
      ['bash', '-c', f'umask 022; . {_DEPLOY / "slurm/run.sbatch"}'],
      env={'PATH': f'{tmp_path}:/usr/bin:/bin'},
      cwd=tmp_path,
      check=True,
    )
    (path,) = (tmp_path / 'out').iterdir()
    assert path.name == 'cluster_secret'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found.append(path.read_text())
  assert found[0] == found[1] and found[0].startswith('32')
  _, arguments = _words(_DEPLOY / 'slurm/run.sbatch')
  assert '--cluster_secret_file=$secret' in arguments


@pytest.mark.parametrize(
  'jax, code, installed',
  [
    ('cpu', 0, ''),
    ('cuda12', 0, '--require-hashes -r deploy/cuda12.txt'),
    ('cuda', 2, ''),
  ],
)
def test_the_image_takes_what_it_knows(tmp_path, jax, code, installed):
  text = (_DEPLOY / 'Dockerfile').read_text().replace('\\\n', ' ')
  (line,) = [x for x in text.splitlines() if x.startswith('RUN case')]
  line = re.sub(r' +', ' ', line)
  (tmp_path / 'pip').write_text('#!/bin/sh\necho "$@"\n')
  (tmp_path / 'pip').chmod(0o755)
  script = line.removeprefix('RUN ').replace('/tmp/', f'{tmp_path}/')
  done = subprocess.run(
    ['sh', '-c', script],
    env={'PATH': f'{tmp_path}:/usr/bin:/bin', 'JAX': jax},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == code
  assert installed in done.stdout and bool(done.stdout) == bool(installed)


_RECIPES = [p for p in _DEPLOY.rglob('*') if p.is_file() and p.suffix != '.txt']


@pytest.mark.parametrize('path', _RECIPES, ids=lambda p: p.name)
def test_no_recipe_has_a_seed(path):
  """Whoever knows it can remove the noise; recipes are for private runs."""
  texts = [path.read_text()]
  for text in texts:  # Grows by the flag files that are named.
    text = re.sub(r'^\s*#.*$', '', text, flags=re.MULTILINE)
    assert '--seed' not in text
    files = re.findall(r'--flagfile=(\S+)', text)
    texts += [(_ROOT / file).read_text() for file in files]
  assert len(texts) > 1 or path not in _RUNS


@pytest.mark.parametrize('path', _MANIFESTS, ids=lambda p: p.name)
def test_pods_and_the_image_have_an_ordinary_user(path):
  (job,) = [
    d for d in yaml.safe_load_all(path.read_text()) if d['kind'] == 'Job'
  ]
  context = _pod(job)['securityContext']
  assert context['runAsNonRoot'] is True and context['runAsUser'] > 0
  assert context['fsGroup'] == context['runAsUser']
  for container in [
    *_pod(job)['containers'],
    *_pod(job).get('initContainers', ()),
  ]:
    assert container['securityContext']['allowPrivilegeEscalation'] is False
  text = (_DEPLOY / 'Dockerfile').read_text()
  assert re.findall(r'^USER (\S+)$', text, re.M) == [str(context['runAsUser'])]
  assert text.rindex('\nRUN ') < text.index('\nUSER ')


def test_pods_of_a_run_are_alone_in_their_network():
  found = _manifest('run.yaml')
  policy, name = (
    found['NetworkPolicy']['spec'],
    found['Job']['metadata']['name'],
  )
  own = {'podSelector': {'matchLabels': {'job-name': name}}}
  assert policy['podSelector'] == own['podSelector']
  assert policy['policyTypes'] == ['Ingress', 'Egress']
  assert policy['ingress'] == [{'from': [own]}]
  to_own, to_names = policy['egress']
  assert to_own == {'to': [own]}
  assert {port['port'] for port in to_names['ports']} == {53}


def test_the_cluster_secret_is_for_its_owner():
  pod = _pod(_manifest('run.yaml')['Job'])
  volumes = {volume['name']: volume for volume in pod['volumes']}
  assert volumes['given']['secret']['defaultMode'] == 0o400
  assert volumes['cluster']['emptyDir'] == {'medium': 'Memory'}
  (copying,), (container,) = pod['initContainers'], pod['containers']
  # With fsGroup, the group can read the secret itself.
  assert copying['command'][-1].startswith('umask 077 && ')
  assert copying['command'][-1].endswith('> /cluster/secret')
  assert '--cluster_secret_file=/cluster/secret' in container['args']
  mounts = {mount['name'] for mount in container['volumeMounts']}
  assert 'given' not in mounts and 'cluster' in mounts
  for path in _RECIPES:
    assert not re.search(r'[0-9a-f]{64}', path.read_text()), path


@pytest.mark.parametrize('name', ['cuda12', 'cuda13'])
def test_plugins_are_hashed_and_of_the_version_of_jax(name):
  text = (_DEPLOY / f'{name}.txt').read_text()
  entries = re.split(r'^(?=[\w.-]+==)', text, flags=re.MULTILINE)[1:]
  assert len(entries) > 10
  for entry in entries:
    assert entry.count('--hash=sha256:') > 0, entry
  lock = (_ROOT / 'requirements.txt').read_text()
  versions = re.findall(r'^jax==(.+?) \\$', lock, re.MULTILINE)
  for package in (f'jax-{name}-plugin', f'jax-{name}-pjrt'):
    found = re.findall(rf'^{package}==(.+?) \\$', text, re.MULTILINE)
    assert found == versions  # With their markers.
  # The lock has the rest; a second pin could contradict it.
  names = {entry.partition('==')[0] for entry in entries}
  assert not names & set(re.findall(r'^([\w.-]+)==', lock, re.MULTILINE))
