"""TFF computations that are awaited."""

import asyncio
import gc
import os
import threading

import numpy as np
from pda_fed.tff import runtime
import pytest
import tensorflow as tf
import tensorflow_federated as tff

_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


@tff.tensorflow.computation(np.int32)
def _count_to(n):
  return tf.while_loop(lambda i: i < n, lambda i: [i + 1], [tf.constant(0)])[0]


@tff.federated_computation(_AT_CLIENTS)
def _total(values):
  return tff.federated_sum(tff.federated_map(_count_to, values))


@tff.tensorflow.computation(np.int32)
def _positive(x):
  with tf.control_dependencies([tf.debugging.assert_positive(x)]):
    return tf.identity(x)


@tff.federated_computation(_AT_CLIENTS)
def _total_of_positive(values):
  return tff.federated_sum(tff.federated_map(_positive, values))


_FOREVER = [2**31 - 1] * 4


@pytest.fixture(name='context')
def fixture_context():
  found = runtime.AsyncInProcessContext(max_concurrent_clients=2)
  yield found
  found.close()


def test_the_result_is_that_of_the_other_context(context):
  found = asyncio.run(context.invoke(_total, [1, 2, 4]))
  assert found == _total([1, 2, 4]) == 7
  assert type(found) is type(_total([1]))


def test_calls_run_side_by_side(context):
  meeting = threading.Barrier(2)

  def meet(x):
    meeting.wait(timeout=60)  # Both calls must be here.
    return x

  @tff.tensorflow.computation(np.int32)
  def comp(x):
    return tf.ensure_shape(tf.numpy_function(meet, [x], tf.int32), [])

  async def both():
    calls = [context.invoke(comp, 1), context.invoke(comp, 2)]
    return await asyncio.gather(*calls)

  assert asyncio.run(both()) == [1, 2]


def test_the_loop_goes_on_meanwhile(context):
  async def count():
    call = asyncio.create_task(context.invoke(_total, _FOREVER))
    for _ in range(20):
      await asyncio.sleep(0.01)
    assert not call.done()
    call.cancel()

  asyncio.run(count())


def test_a_cancelled_call_stops_its_clients(context):
  async def stop():
    call = asyncio.create_task(context.invoke(_total, _FOREVER))
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
      await call
    # The threads are free again, or this would wait for hours.
    return await asyncio.wait_for(context.invoke(_total, [3]), 60)

  assert asyncio.run(stop()) == 3


def test_a_call_that_is_cancelled_before_its_clients_start(
  context, monkeypatch
):
  start = context._runner.start
  entered, go_on, started = (threading.Event() for _ in range(3))

  def start_late(*args):
    entered.set()
    go_on.wait(60)
    try:
      return start(*args)
    finally:
      started.set()

  async def stop():
    monkeypatch.setattr(context._runner, 'start', start_late)
    call = asyncio.create_task(context.invoke(_total, _FOREVER))
    await asyncio.to_thread(entered.wait, 60)
    monkeypatch.undo()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
      await call
    go_on.set()
    await asyncio.to_thread(started.wait, 60)
    return await asyncio.wait_for(context.invoke(_total, [3]), 60)

  assert asyncio.run(stop()) == 3


@pytest.mark.parametrize(
  'comp, argument',
  [(_total_of_positive, [1, -1]), (_total, ['a']), (_total, 1)],
)
def test_errors_are_those_of_the_other_context(context, comp, argument):
  with pytest.raises((runtime.ComputationError, TypeError)) as expected:
    comp(argument)
  with pytest.raises(expected.type) as found:
    asyncio.run(context.invoke(comp, argument))
  assert str(found.value) == str(expected.value)
  assert asyncio.run(context.invoke(_total, [1])) == 1


def test_programs_of_tff(context):
  async def run():
    program = tff.program.NativeFederatedContext(context)
    with tff.framework.get_context_stack().install(program):
      results = [_total([i, 1]) for i in range(5)]
      return await tff.program.materialize_value(results)

  assert asyncio.run(run()) == [1, 2, 3, 4, 5]


def test_a_call_of_a_closed_loop_is_stopped(context):
  loop = asyncio.new_event_loop()
  call = loop.create_task(context.invoke(_total, _FOREVER))
  loop.run_until_complete(asyncio.sleep(0.5))
  loop.close()
  del call, loop
  gc.collect()
  found = asyncio.run(asyncio.wait_for(context.invoke(_total, [3]), 60))
  assert found == 3


def test_a_closed_context_is_refused(context):
  context.close()
  with pytest.raises(runtime.RuntimeClosedError, match='closed'):
    asyncio.run(context.invoke(_total, [1]))


def test_a_forked_process_is_refused(context):
  assert asyncio.run(context.invoke(_total, [1])) == 1
  pid = os.fork()
  if pid == 0:
    try:
      asyncio.run(context.invoke(_total, [1]))
    except runtime.RuntimeClosedError as e:
      os._exit(7 if 'forked' in str(e) else 1)
    finally:
      os._exit(1)
  assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_no_thread_stays_of_a_context_that_was_dropped():
  before = threading.active_count()
  for _ in range(3):
    context = runtime.AsyncInProcessContext(max_concurrent_clients=2)
    asyncio.run(context.invoke(_total, [1, 2, 3]))
    threads = [t for t in threading.enumerate() if t.name == 'pda_fed-tff']
    del context
    gc.collect()
    for thread in threads[-2:]:
      thread.join(60)
  assert threading.active_count() <= before
