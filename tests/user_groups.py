"""Gives files to groups: the one that is the user's alone, or another."""

import grp
import os
import pwd
from pathlib import Path

import pytest

_ANOTHER = 4321


def give_to_own_group(path: Path) -> None:
    """Give it to the user's own group; skips where the system makes no group for each user."""
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(user.pw_gid)
    if group.gr_name != user.pw_name or set(group.gr_mem) - {user.pw_name}:
        pytest.skip("this user has no group alone")
    os.chown(path, -1, group.gr_gid)


def give_to_another_group(path: Path) -> None:
    """Give it to a group that is not the user's; only root can."""
    if os.geteuid():
        pytest.skip("only root gives a file to any group")
    os.chown(path, -1, _ANOTHER)
