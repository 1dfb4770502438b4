import re

import pytest

from hashcade import errors
from hashcade._extras import require_extra


def tree(cls, indent=0):
    """The public classes under ``cls``, each with its depth."""
    yield cls.__name__, indent
    for child in sorted(cls.__subclasses__(), key=lambda c: c.__name__):
        if child.__module__ == errors.__name__:  # others are those of one package alone
            yield from tree(child, indent + 1)


def test_classes_are_as_drawn():
    drawn = [
        (match[2], len(match[1]) // 4)
        for line in errors.__doc__.splitlines()
        if (match := re.fullmatch(r"    ([│├└─ ]*)(\w+)", line))
    ]
    assert drawn == list(tree(errors.HashcadeError))
    assert drawn[0] == ("HashcadeError", 0)


def test_every_error_is_listed_and_documented():
    classes = {name for name, _ in tree(errors.HashcadeError)}
    assert set(errors.__all__) == classes | {"add_hint"}
    assert all(getattr(errors, name).__doc__ for name in classes)


def test_bad_arguments_stay_outside_the_tree():
    assert not issubclass(errors.HashcadeError, ValueError)


# -- missing extras -----------------------------------------------------------------------


def test_an_installed_module_is_returned():
    import json.decoder

    assert require_extra("json.decoder", "train") is json.decoder


@pytest.mark.parametrize("module", ["no_such_module", "no_such_module.inner"])
def test_a_missing_extra_is_one_line_with_the_way_out(module):
    with pytest.raises(ImportError) as caught:
        require_extra(module, "train")
    assert str(caught.value) == (
        "no_such_module is not installed; run: pip install 'hashcade[train]'"
    )


def test_a_broken_installation_keeps_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import missing_dependency_of_it\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="missing_dependency_of_it"):
        require_extra("broken_extra", "train")


# -- hints ----------------------------------------------------------------------------------


def test_a_hint_is_carried_beside_the_message():
    error = errors.StorageError("no table", hint="make one")
    assert (str(error), error.hint) == ("no table", "make one")
    assert errors.DataError("bad").hint is None
    assert errors.add_hint(ValueError("bad"), "try this").hint == "try this"
