"""The world that every test here steps through."""

from tests.protocol.world import world as world
