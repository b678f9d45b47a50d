from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron.targets import functions
from tests.policy_matrix.world import World

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> Iterator[MakeWorld]:
    monkeypatch.setattr(functions, "registered", {})
    settings.DCRON_SHARDS = 4  # fewer locks to write
    settings.DCRON_DISPATCHER = "thread"  # only this process needs to learn of a cancel
    worlds: list[World] = []

    def make(*, look_ahead: timedelta | None = None, **given: Any) -> World:
        if look_ahead is not None:
            settings.DCRON_LOOK_AHEAD = look_ahead
        world = World(functions.register_function, **given)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.close()
