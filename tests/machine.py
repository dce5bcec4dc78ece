"""What this machine's lock leaves out."""

import platform

# tensorflow-federated has wheels for x86_64, none for aarch64. By the machine,
# not by whether the import works: a broken install must fail.
HAS_TFF = platform.machine() != 'aarch64'
