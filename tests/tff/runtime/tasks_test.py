"""The pool of threads: order, urgency, failures, cancelling."""

import threading
import time

from pda_fed.tff.runtime import errors
from pda_fed.tff.runtime import tasks
import pytest


@pytest.fixture(params=[1, 3])
def pool(request):
  found = tasks.Pool(request.param)
  yield found
  found.close()


def test_tasks_wait_for_their_inputs(pool):
  done = []

  def work(run):
    first = run.start(lambda: done.append('first') or 2)
    second = run.start(lambda: first.result + 1, [first])
    return run.start(lambda: first.result * second.result, [first, second])

  assert pool.call(work).result == 6
  assert done == ['first']


def test_the_most_urgent_runs_first():
  pool, order = tasks.Pool(1), []

  def work(run):
    for urgency in (0, 2, 1, 2):
      run.start(lambda u=urgency: order.append(u), urgency=urgency)

  pool.call(work)
  pool.close()
  assert order == [2, 2, 1, 0]


def test_a_failure_ends_the_run_and_not_the_pool(pool):
  def fail():
    raise ValueError('mine')

  def work(run):
    first = run.start(fail, place=errors.Place('a client', 3, 9))
    run.start(lambda: pytest.fail('it has no input'), [first])

  with pytest.raises(errors.ComputationError, match='client 3 of 9 .*: mine'):
    pool.call(work)
  assert pool.call(lambda run: 5) == 5


def test_errors_of_ours_stay_what_they_are(pool):
  def work(run):
    raise errors.UnsupportedComputationError('no')

  with pytest.raises(errors.UnsupportedComputationError):
    pool.call(work)


def test_runs_share_the_threads():
  pool = tasks.Pool(2)
  meeting = threading.Barrier(2)
  found = []

  def call():
    found.append(pool.call(lambda run: meeting.wait(timeout=60) >= 0))

  threads = [threading.Thread(target=call) for _ in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  pool.close()
  assert found == [True, True]


def test_a_closed_pool_lets_go_who_waits():
  pool = tasks.Pool(1)
  began, end, found = threading.Event(), threading.Event(), []

  def work(run):
    run.start(lambda: found.append('never'))
    began.set()
    end.wait(60)

  def call():
    with pytest.raises(errors.RuntimeClosedError, match='stopped'):
      pool.call(work)
    found.append('released')

  thread = threading.Thread(target=call)
  thread.start()
  began.wait(60)
  threading.Timer(0.1, end.set).start()
  pool.close()
  thread.join(60)
  assert found == ['released']
  with pytest.raises(errors.RuntimeClosedError):
    pool.call(lambda run: None)


def test_a_pool_that_is_closed_as_a_call_begins_lets_it_go(pool):
  assert pool.call(lambda run: 1) == 1
  run = pool.start(lambda run: run.start(lambda: time.sleep(0.1)))
  pool.close()
  with pytest.raises(errors.RuntimeClosedError):
    run.wait()


def test_a_call_within_a_call_is_refused(pool):
  with pytest.raises(errors.UnsupportedComputationError, match='within'):
    pool.call(lambda run: pool.call(lambda inner: 1))


def test_no_thread_is_left(pool):
  before = threading.active_count()
  pool.call(lambda run: [run.start(time.monotonic) for _ in range(20)])
  pool.close()
  assert threading.active_count() <= before
