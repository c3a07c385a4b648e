"""Loads some files of an unpacked wheel. Whatever else they import stands for itself and does nothing."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

import pydantic_core


class Kind(type):
    """A class that may be used as anything: a type, a decorator, an enumeration."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return made(name)

    def __getitem__(cls, key):
        return cls

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls

    def __iter__(cls):
        return iter(())

    def __lt__(cls, other):
        return False

    def __gt__(cls, other):
        return False


class Thing(metaclass=Kind):
    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if args and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return made(name)()

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        return pydantic_core.core_schema.any_schema()


def made(name):
    return Kind(name, (Thing,), {})


class Absent(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = made(name)
        setattr(self, name, value)
        return value


class Silent:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root, read, absent):
        self.root, self.read, self.absent = root, read, absent

    def find_spec(self, name, path, target=None):
        if name in self.read:
            at = os.path.join(self.root, *name.split("."))
            if os.path.isdir(at):
                return importlib.util.spec_from_file_location(name, at + "/__init__.py", submodule_search_locations=[at])
            return importlib.util.spec_from_file_location(name, at + ".py")
        if name.split(".")[0] in self.absent:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def load(root, read, absent):
    """Makes the modules of read loadable from root, and those of absent stand for themselves."""
    sys.meta_path.insert(0, Finder(root, read, absent))


def plain(value):
    """What json.dumps makes of values that it does not know."""
    if isinstance(value, Thing):
        raise TypeError("a thing that is not there: " + type(value).__name__)
    return value.model_dump() if hasattr(value, "model_dump") else list(value)
