"""The tokenizer of English: the conventions of the Penn Treebank; no character of a text is lost."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beamtree.data import words
from beamtree.data.words import tokenize

# Text in which every rule applies, and text of any characters.
MARKS = st.sampled_from([*"'\"`.,:;-()[]<>!?*$’“”»…—", "''", "...", "--", "n't", "'s", "mr.", "u.s.", "cannot"])
TEXTS = st.lists(MARKS | st.sampled_from(["a", "Dog", "7", " ", "\n", "\x85"]), max_size=20).map("".join) | st.text()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The film, it works; does it? Yes!", "the film , it works ; does it ? yes !"),
        ("(a) [b] {c} <d>", "( a ) [ b ] { c } < d >"),
        ("50% of $1,000.50 at 5:30: 3,5 a,b", "50 % of $ 1,000.50 at 5:30 : 3,5 a , b"),
        ("tom&jerry #1 a@b *wow*", "tom & jerry # 1 a @ b * wow *"),
        ("well-made--or not---yet", "well-made -- or not -- -yet"),
        ("so... what.... no..", "so ... what .... no .."),
        ("it—was–so", "it — was – so"),
        # quotes
        ('"Yes," he said, "no".', "`` yes , '' he said , `` no '' ."),
        ("(\"Yes\") [''no'']", "( `` yes '' ) [ `` no '' ]"),
        ('He left."So what?"', "he left . `` so what ? ''"),
        ("'tis 'quoted' 'em the '90s", "' tis ' quoted ' ' em the ' 90s"),
        ("“yes” ‘no’ it’s", "“ yes ” ‘ no ’ it ’ s"),
        # contractions
        (
            "I'm sure he'll say it's Bob's; they've we're I'd",
            "i 'm sure he 'll say it 's bob 's ; they 've we 're i 'd",
        ),
        ("don't can't won't shouldn't've", "do n't ca n't wo n't shouldn't 've"),
        ("DON'T (it's) the dogs' x's'", "do n't ( it 's ) the dogs ' x 's '"),
        ("rock'n'roll o'clock y'all", "rock'n'roll o'clock y'all"),
        (
            "cannot gonna gotta gimme lemme wanna d'ye more'n",
            "can not gon na got ta gim me lem me wan na d 'ye more 'n",
        ),
        ("wanna-be cannots", "wanna-be cannots"),
        # full stops
        ("It ends. It goes on. Then", "it ends . it goes on . then"),
        ("one.two 9.5 www.imdb.com now", "one.two 9.5 www.imdb.com now"),
        ("(It ends.) 'It ends.' \"It ends.\" x", "( it ends . ) ' it ends . ' `` it ends . '' x"),
        ("Mr. Smith vs. Dr. J. F. Smith-Jones Jr. in St. Ives", "mr. smith vs. dr. j. f. smith-jones jr. in st. ives"),
        (
            "the U.S. (i.e. not the U.K.) at 5 a.m. by a Ph.D. x",
            "the u.s. ( i.e. not the u.k. ) at 5 a.m. by a ph.d. x",
        ),
        ("Jr.'s U.S.'s", "jr. 's u.s. 's"),
        ("in 1969. it's. it’s. Then", "in 1969 . it 's . it ’ s . then"),
        ("etc. and cats. gmr. x", "etc . and cats . gmr . x"),
        # the last one of a text
        ("He is Mr.", "he is mr ."),
        ('He lives in the "U.S.")', "he lives in the `` u.s . '' )"),
        ("and so...", "and so ..."),
        (".", "."),
        (" \n\t ", ""),
    ],
)
def test_words_are_cut_as_in_the_treebank(text: str, tokens: str) -> None:
    assert tokenize(text) == tokens.split()


def test_case_stays_if_asked_for() -> None:
    assert tokenize("Mr. Smith CAN'T. GONNA", lower=False) == ["Mr.", "Smith", "CA", "N'T", ".", "GON", "NA"]


@given(TEXTS)
def test_no_token_is_empty_or_holds_whitespace(text: str) -> None:
    assert all(token.split() == [token] for token in tokenize(text))


@given(TEXTS, st.booleans())
@example("a''b\"c``d", False)
def test_only_whitespace_and_the_forms_of_quotes_are_lost(text: str, lower: bool) -> None:
    def letters(text: str) -> str:
        return "".join(text.split()).replace('"', "''").replace("`", "'")

    assert letters("".join(tokenize(text, lower))) == letters(text.lower() if lower else text)


@given(TEXTS)
def test_the_kind_of_whitespace_is_all_one(text: str) -> None:
    assert tokenize(text) == tokenize("\u2028\t".join(text.split()))


@given(st.lists(TEXTS, max_size=5))
def test_only_the_last_chunk_is_special(texts: list[str]) -> None:
    """Therefore chunks can be cached: their tokens do not depend on the context."""
    alone = [tokenize(f"{chunk} end") for chunk in " ".join(texts).split()]
    assert tokenize(" ".join([*texts, "end"])) == [token for tokens in alone for token in tokens[:-1]] + ["end"]


def test_what_is_remembered_changes_nothing_and_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MAX_CACHED", 7)
    monkeypatch.setattr(words, "_KNOWN", words._Chunks())
    text = " ".join(f"{number}'s, {number % 5}..." for number in range(100)) + " " + "x" * 1000 + " x"
    first = tokenize(text)
    assert first[:8] == ["0", "'s", ",", "0", "...", "1", "'s", ","]
    assert tokenize(text) == first
    assert 0 < len(words._KNOWN) <= 7
    assert max(map(len, words._KNOWN)) < 10


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    "chunk", ["a.", ".", "'", "a'", '"', "-", ".)", ")", "mr.", "`", "n't", ":,", ".'", "a.a", "''a"]
)
def test_the_time_is_linear_in_the_length_of_a_chunk(chunk: str) -> None:
    """100,000 characters without a space take a fraction of a second; in quadratic time they would take minutes."""
    text = chunk * (100_000 // len(chunk))
    start = time.process_time()
    for end in ("", "x"):
        tokenize(f"{text}{end} {text}{end}")
    assert time.process_time() - start < 10
