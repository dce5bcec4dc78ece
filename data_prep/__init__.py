"""Data preparation: from sources to private, public and held-out users."""

from data_prep.partition import Partition
from data_prep.partition import partition_users
from data_prep.partition import PartitionConfig
from data_prep.partition import UserSlices

__all__ = [
  'Partition',
  'PartitionConfig',
  'UserSlices',
  'partition_users',
]
