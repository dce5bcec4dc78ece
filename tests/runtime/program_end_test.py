"""However a program ends, its worker ends with it."""

import os
import signal
import subprocess
import time

import pytest

from tests.runtime import processes

_WITH_BLOCK = """
  with runtime.local_workers() as workers:
    print(workers[0].pid, add_one(1.0), flush=True)
    {then}
"""
_NOTEBOOK = """
  worker = runtime.use_local_worker()
  print(worker.pid, add_one(1.0), flush=True)
  {then}
"""
_STYLES = pytest.mark.parametrize(
  'style', [_WITH_BLOCK, _NOTEBOOK], ids=['with_block', 'notebook']
)


class TestProgramEnds:
  """No worker is alive 5 s after its program, however that ended."""

  def _start(self, style: str, then: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen(
      processes.program(style.format(then=then)),
      cwd=processes.ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      bufsize=0,  # So that readline() takes no more than a line.
      start_new_session=True,  # A terminal gives a program a group too.
    )
    line = process.stdout.readline().split()
    assert line[1:] == [b'2.0'], process.stderr.read()
    return process, int(line[0])

  @_STYLES
  def test_normally_with_its_output_in_a_pipe(self, style, temporary_folder):
    process, pid = self._start(style, 'print("end")')
    # communicate() returns when every holder of the pipe has closed it, as
    # `program | cat` does: a worker that inherited it would hold it open.
    out, err = process.communicate(timeout=120)
    assert (out, err, process.returncode) == (b'end\n', b'', 0)
    assert processes.wait_until(lambda: not processes.alive(pid), 60)
    assert list(temporary_folder.glob('pda_fed-*')) == []

  @_STYLES
  def test_by_ctrl_c_in_a_long_call(self, style):
    process, pid = self._start(style, 'slow(0.0)')
    time.sleep(1)  # So that the call is under way.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert b'KeyboardInterrupt' in err
    assert processes.wait_until(lambda: not processes.alive(pid), 60)

  @pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
  @_STYLES
  def test_by_a_signal_in_a_long_call(self, style, number, temporary_folder):
    process, pid = self._start(style, 'slow(0.0)')
    time.sleep(1)
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == -number
    assert processes.wait_until(lambda: not processes.alive(pid), 60)
    # The supervisor outlives the program just long enough to tidy up.
    folders = temporary_folder.glob
    assert processes.wait_until(lambda: not list(folders('pda_fed-*')), 60)

  def test_silently_however_often_workers_come_and_go(self):
    # gRPC threads that outlive a closed channel print tracebacks, sometimes.
    program = processes.program("""
      for _ in range(6):
        with runtime.local_workers():
          add_one(1.0)
      """)
    done = subprocess.run(
      program, cwd=processes.ROOT, capture_output=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (b'', b'', 0)

  def test_by_an_exception(self):
    process, pid = self._start(_WITH_BLOCK, 'raise ValueError("mine")')
    _, err = process.communicate(timeout=120)
    assert err.strip().endswith(b'ValueError: mine')
    assert processes.wait_until(lambda: not processes.alive(pid), 60)

  def test_worker_killed_in_a_long_call_is_an_error_not_a_wait(self):
    process, pid = self._start(_WITH_BLOCK, 'slow(0.0)')
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b'WorkerDiedError' in err
