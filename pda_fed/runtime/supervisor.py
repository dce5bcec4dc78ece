"""The process between a program and its TFF worker.

TFF's `worker_binary` listens on every network interface without
authentication, inherits its parent's output and outlives it. This supervisor,
started by `pda_fed.runtime.worker`, closes those doors:

    program --- unix socket in a 0700 folder --> supervisor --- tcp --> worker
                                                 `-- own network namespace --'

*   The worker runs in a network namespace that holds a loopback interface and
    nothing else, so no address of the machine leads to it. Bytes reach it only
    through the supervisor's Unix socket, which the file system guards.
*   The worker ends when the supervisor ends (parent-death signal), and the
    supervisor ends when the program does, however that happened: its standard
    input closes, or its parent changes.

The supervisor is run as a plain file by `python -I -S`, so that it starts in
milliseconds; it may import nothing but the standard library. It reports on
standard output, one JSON object a line:

    {"event": "ready", "pid": 123}                 the socket may be used
    {"event": "no_isolation", "reason": "..."}     the kernel forbids it
    {"event": "failed", "reason": "..."}           the worker did not start
"""

import argparse
import ctypes
import errno
import fcntl
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import Union

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_TCP_LISTEN = '0A'

_POLL_SECONDS = 0.5
_STARTING_POLL_SECONDS = 0.02
_TERMINATE_SECONDS = 2.0
_SPLICE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> None:
  if result != 0:
    code = ctypes.get_errno()
    raise OSError(code, f'{call}: {os.strerror(code)}')


def _write_file(path: str, text: str) -> None:
  with open(path, 'w', encoding='ascii') as f:
    f.write(text)


def enter_network_namespace() -> None:
  """Moves this process into a new network namespace with loopback up.

  Root needs only the network namespace. Others get it inside a user namespace
  that maps their own user and group to themselves, so that files keep their
  owners.

  Raises:
    OSError: If the kernel, or a sandbox around us, forbids it.
  """
  uid, gid = os.getuid(), os.getgid()
  if _libc.unshare(_CLONE_NEWNET) != 0:
    _checked(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET), 'unshare')
    _write_file('/proc/self/setgroups', 'deny')
    _write_file('/proc/self/uid_map', f'{uid} {uid} 1')
    _write_file('/proc/self/gid_map', f'{gid} {gid} 1')
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    request = struct.pack('16sh14x', b'lo', 0)
    _, flags = struct.unpack('16sh14x', fcntl.ioctl(s, _SIOCGIFFLAGS, request))
    fcntl.ioctl(
      s, _SIOCSIFFLAGS, struct.pack('16sh14x', b'lo', flags | _IFF_UP)
    )


def listening_ports(pid: Union[int, str] = 'self') -> dict[str, int]:
  """TCP ports that are listened on in the network namespace of `pid`.

  Args:
    pid: A process.

  Returns:
    The port of each listening socket, by the socket's inode.
  """
  ports = {}
  for table in ('tcp', 'tcp6'):
    try:
      with open(f'/proc/{pid}/net/{table}', encoding='ascii') as f:
        rows = [line.split() for line in f.readlines()[1:]]
    except FileNotFoundError:  # A kernel without IPv6.
      continue
    for row in rows:
      if row[3] == _TCP_LISTEN:
        ports[row[9]] = int(row[1].rpartition(':')[2], 16)
  return ports


def listening_inodes(port: int) -> set[str]:
  """Socket inodes that listen on `port` in this network namespace."""
  return {inode for inode, p in listening_ports().items() if p == port}


def socket_inodes(pid: int) -> set[str]:
  """Inodes of the sockets that process `pid` holds open."""
  inodes = set()
  folder = f'/proc/{pid}/fd'
  for fd in os.listdir(folder):
    try:
      link = os.readlink(os.path.join(folder, fd))
    except FileNotFoundError:  # Closed since the listing.
      continue
    if link.startswith('socket:['):
      inodes.add(link[len('socket:[') : -1])
  return inodes


def pick_port() -> int:
  """A TCP port on which nothing listens now, on any address."""
  for _ in range(100):
    port = random.SystemRandom().randrange(20000, 60000)
    if not listening_inodes(port):
      return port
  raise OSError(errno.EADDRINUSE, 'no free TCP port found in 20000-59999')


class Worker:
  """The worker process and the port that only it may listen on."""

  def __init__(self, argv: list[str], port: int, log_path: str):
    self.port = port
    supervisor_pid = os.getpid()

    def die_with_supervisor():
      _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != supervisor_pid:  # It died before the call above.
        os._exit(1)

    with open(log_path, 'ab') as log:
      self.process = subprocess.Popen(
        [*argv, f'--port={port}'],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_supervisor,
      )

  def listens_alone(self) -> bool:
    """Whether the port is open, and every listener on it is this worker.

    gRPC servers set SO_REUSEPORT: a second server on the same port would not
    fail, it would take a share of the connections. So a port that is open is
    not enough; it has to be ours.

    Returns:
      True when connections to the port can only reach this worker.

    Raises:
      OSError: If another process listens on the port too.
    """
    listening = listening_inodes(self.port)
    if not listening:
      return False
    try:
      own = socket_inodes(self.process.pid)
    except (FileNotFoundError, ProcessLookupError):
      return False  # The worker has just ended; the caller's poll tells.
    if listening - own:
      raise OSError(
        errno.EADDRINUSE, f'another process listens on port {self.port} too'
      )
    return True

  def connect(self) -> socket.socket:
    """A connection to the worker, over whichever loopback it serves."""
    try:
      return socket.create_connection(('127.0.0.1', self.port))
    except ConnectionRefusedError:
      return socket.create_connection(('::1', self.port))

  def end(self) -> None:
    if self.process.poll() is not None:
      return
    self.process.terminate()
    try:
      self.process.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
      self.process.kill()
      self.process.wait()


def _copy(source: socket.socket, sink: socket.socket) -> None:
  """Moves bytes until `source` ends, without bringing them into Python."""
  pipes = []
  try:
    pipes += os.pipe()
    pipe_out, pipe_in = pipes
    try:
      fcntl.fcntl(pipe_in, _F_SETPIPE_SZ, _SPLICE_BYTES)
    except OSError:
      pass  # Over the user's pipe quota: the default size works, in more calls.
    while count := os.splice(source.fileno(), pipe_in, _SPLICE_BYTES):
      while count:
        count -= os.splice(pipe_out, sink.fileno(), count)
    sink.shutdown(socket.SHUT_WR)
  except OSError:
    # One side is gone, or we are out of files, so the connection is over for
    # the other side too: gRPC sees it close, and the call is unavailable.
    for end in (source, sink):
      try:
        end.shutdown(socket.SHUT_RDWR)
      except OSError:
        pass  # Closed already.
  finally:
    for pipe in pipes:
      os.close(pipe)


def relay(client: socket.socket, worker: Worker) -> None:
  """Joins `client` and a new connection to the worker until either ends."""
  with client:
    try:
      server = worker.connect()
    except OSError:
      return  # The worker is gone; closing `client` tells the program.
    with server:
      server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      back = threading.Thread(target=_copy, args=(server, client), daemon=True)
      back.start()
      _copy(client, server)
      back.join()


class Supervisor:
  """Starts one worker, relays to it, and ends it with the program."""

  def __init__(self, options: argparse.Namespace, argv: list[str]):
    self._options = options
    self._argv = argv

  def _report(self, event: str, **details) -> None:
    try:
      print(json.dumps({'event': event, **details}), flush=True)
    except BrokenPipeError:
      pass  # The program is gone; the next look at `_program_gone` says so.

  def _program_gone(self, wait_seconds: float, *more) -> tuple[bool, list]:
    """Waits for events; returns whether to stop, and which of `more` fired."""
    ready, _, _ = select.select([sys.stdin, *more], [], [], wait_seconds)
    orphaned = os.getppid() != self._options.parent
    return sys.stdin in ready or orphaned, [x for x in ready if x in more]

  def _wait_for_port(self, worker: Worker) -> bool:
    """Returns whether the worker came up; reports the reason if it did not."""
    while True:
      gone, _ = self._program_gone(_STARTING_POLL_SECONDS)
      if gone:
        return False
      if (code := worker.process.poll()) is not None:
        how = f'signal {-code}' if code < 0 else f'exit code {code}'
        self._report('failed', reason=f'it ended with {how} while starting')
        return False
      try:
        if worker.listens_alone():
          return True
      except OSError as e:
        self._report('failed', reason=e.strerror)
        return False

  def _serve(self, worker: Worker) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
      try:
        listener.bind(self._options.socket)
        listener.listen()
      except OSError as e:
        self._report('failed', reason=f'{self._options.socket}: {e.strerror}')
        return
      self._report('ready', pid=worker.process.pid)
      while worker.process.poll() is None:
        gone, ready = self._program_gone(_POLL_SECONDS, listener)
        if gone:
          return
        if ready:
          try:
            client, _ = listener.accept()
          except OSError:
            continue  # It hung up again, or we are out of files for now.
          threading.Thread(
            target=relay, args=(client, worker), daemon=True
          ).start()

  def run(self) -> int:
    """Runs until the program or the worker ends; returns the exit code."""
    if self._options.isolate:
      try:
        enter_network_namespace()
      except OSError as e:
        self._report('no_isolation', reason=e.strerror or str(e))
        return 1
    try:
      worker = Worker(self._argv, pick_port(), self._options.log)
    except OSError as e:
      self._report('failed', reason=e.strerror or str(e))
      return 1
    try:
      if not self._wait_for_port(worker):
        return 1
      self._serve(worker)
    finally:
      signal.signal(signal.SIGTERM, signal.SIG_IGN)  # We are at it.
      died = worker.process.poll() is not None
      worker.end()
      # A worker that died by itself leaves its log for the error message.
      if self._options.remove and not died:
        shutil.rmtree(self._options.remove, ignore_errors=True)
    return 0


def main() -> int:
  """Parses the command line of `pda_fed.runtime.worker` and runs."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--parent', type=int, required=True)
  parser.add_argument('--socket', required=True)
  parser.add_argument('--log', required=True)
  parser.add_argument('--remove', default='')
  parser.add_argument('--isolate', action='store_true')
  parser.add_argument('argv', nargs='+')
  options = parser.parse_args()
  # Ctrl-C in a terminal reaches every process of its group. The program
  # decides what it means; we end when the program does.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
  # A program may ignore its children; we have to learn how ours ended.
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  # A connection takes six files.
  _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
  return Supervisor(options, options.argv).run()


if __name__ == '__main__':
  sys.exit(main())
