from grace.base.words import did_you_mean_one_of


def test_the_choices_are_listed_after_the_nearest() -> None:
    assert did_you_mean_one_of("catt", ["ant", "cat"]) == "; did you mean 'cat'? (known: ant, cat)"
    assert did_you_mean_one_of("x", ["ant", "cat"]) == " (known: ant, cat)"
    assert did_you_mean_one_of("x", []) == ""


def test_of_many_choices_twelve_are_listed() -> None:
    names = [f"class{number}" for number in range(13)]
    assert ", …" not in did_you_mean_one_of("x", names[:12])
    assert did_you_mean_one_of("x", names).endswith(", class10, class11, …)")
