"""The library's names are what they say, however often and in whatever order they are asked for."""

import pkgutil

import steelrail


def test_no_name_of_the_library_is_a_modules_too():
    """Importing a module of that name would put the module in the name's place."""
    modules = {one.name for one in pkgutil.iter_modules(steelrail.__path__)}
    assert modules.isdisjoint(steelrail.__all__)


def test_prepare_and_submit_are_functions_the_second_time_too():
    for _ in range(2):
        assert callable(steelrail.prepare) and callable(steelrail.submit)
