"""Mutants that no test has to kill, each with the reason. They are left out of the samples.

An entry names the file, the function, and what the changed lines look like before and after, in full. An entry that matches
no mutant any more is reported, to be removed.
"""

from __future__ import annotations

from typing import NamedTuple


class Equivalent(NamedTuple):
    file: str
    function: str
    """Or the empty string, for code that runs at import."""
    before: str
    after: str
    reason: str


LOCKED = "The run's row is locked, and its attempt was compared just before."
ONE_TOKEN = "A token belongs to one attempt of one run."
SHORTCUT = "Only saves time: the unique column, or a look under its lock, decides the same."
SAVES_QUERIES = "Only saves a query for each row."
ANY = "Only asks whether there is any row."
TUNING = "A limit chosen for speed; one more or less changes nothing that is promised."
NEVER_INSERTED = (
    "The upsert finds every row and updates two other columns; these values only have to be valid."
)
NOT_STORED = "A name within the program: no row, page or message holds it."
LEFT_OUT_BY_PYTHON = "``available_timezones`` leaves it out by itself."
FALSY = "``None`` is as false as ``False``."
TYPES_ONLY = "Only type checkers read it."
ABOVE = "Another condition of the same query includes this one; this one lets the database use an index."

_CALENDAR = "django_dcron/domain/calendar.py"
_CHAINS = "django_dcron/domain/chains.py"
_CLAIMING = "django_dcron/scheduler/claiming.py"
_CONCLUSION = "django_dcron/conclusion.py"
_DURATIONS = "django_dcron/domain/durations.py"
_JSON_VALUES = "django_dcron/domain/json_values.py"
_OVERLAP = "django_dcron/domain/overlap.py"
_RESCUE = "django_dcron/scheduler/rescue.py"
_RETRY = "django_dcron/domain/retry.py"
_START = "django_dcron/execution/start.py"
_TRANSITIONS = "django_dcron/transitions.py"

_NOT_ZONES = '_NOT_ZONES = {"localtime", "posixrules", "Factory"}'
_FIELD = " = field(compare=False, repr=False)"
_DUMPS = "text = json.dumps(value, ensure_ascii=False, allow_nan=False)"
_ESCAPED_NUL = r"""if r"\u0000" in text.replace(r"\\", ""):"""
_UNITS = '_UNITS = {"days": "d", "hours": "h", "minutes": "m", "seconds": "s"}'
_KEY = 'Key = TypeVar("Key", bound=Hashable)'
_SECONDS = 'return Phrase(_("%(number)d s"), number=seconds if seconds < 5 else seconds // 5 * 5)'
_FULLMATCH = "match = _FRIENDLY.fullmatch(plain) if 0 < len(plain) <= MAX_LENGTH else None"
_DUE = '_DUE = Select(Cursor, lambda: Cursor.objects.due(Given(Cursor, "next_at")).values_list("pk")[:1])'

EQUIVALENT: tuple[Equivalent, ...] = (
    # --- start ---
    Equivalent(
        _START,
        "_started_before",
        "ours = Attempt.objects.using(alias_for(Attempt)).filter(run=run, number=run.attempt, token=token)",
        "ours = Attempt.objects.using(alias_for(Attempt)).filter(number=run.attempt, token=token)",
        ONE_TOKEN,
    ),
    Equivalent(
        _START,
        "_started_before",
        "ours = Attempt.objects.using(alias_for(Attempt)).filter(run=run, number=run.attempt, token=token)",
        "ours = Attempt.objects.using(alias_for(Attempt)).filter(run=run, token=token)",
        ONE_TOKEN,
    ),
    Equivalent(
        _START,
        "_give_way",
        "transitions.hold_back(run.pk, run.attempt, slot=next_slot, reason=blocked)",
        "transitions.hold_back(run.pk, None, slot=next_slot, reason=blocked)",
        LOCKED,
    ),
    Equivalent(
        _START,
        "_take_turn",
        "if not slot_taken and not look:",
        "if slot_taken and not look:",
        SHORTCUT,
    ),
    # --- claiming ---
    *(
        Equivalent(_CLAIMING, "_moved", f"{column}=cursor.{column},", "", NEVER_INSERTED)
        for column in ("namespace", "name", "schedule", "timezone", "calendar_policy", "starts_at", "ends_at")
    ),
    *(
        Equivalent(_CLAIMING, "_moved", f"{column}=cursor.{column},", f"{column}=None,", NEVER_INSERTED)
        for column in ("starts_at", "ends_at")
    ),
    Equivalent(_CLAIMING, "_moved", "enabled=True,", "enabled=False,", NEVER_INSERTED),
    Equivalent(_CLAIMING, "", _DUE, _DUE.replace("[:1]", "[:2]"), ANY),
    # --- conclusion ---
    Equivalent(
        _CONCLUSION,
        "conclude",
        "if not won and token is not None:",
        "if not won or token is not None:",
        "An outcome that won is the attempt's, and one without a token matches no attempt: nothing is noted.",
    ),
    # --- domain ---
    *(
        Equivalent(_RETRY, "", f'{name} = "{name.lower()}"', f'{name} = "{value}"', NOT_STORED)
        for name in ("TRANSIENT", "CONTENTION", "PERMANENT")
        for value in (name, f"XX{name.lower()}XX")
    ),
    *(
        Equivalent(_OVERLAP, "", f'{name} = "{name.lower()}"', f'{name} = "{value}"', NOT_STORED)
        for name in ("WAIT", "WAIT_NEXT", "REPLACE", "REPLACE_NEXT")
        for value in (name, f"XX{name.lower()}XX")
    ),
    Equivalent(
        "django_dcron/domain/hashing.py",
        "hashed_value",
        'digest = sha256(f"{field}\\n{key}".encode("utf-8", "surrogatepass")).digest()',
        'digest = sha256(f"{field}\\n{key}".encode("UTF-8", "surrogatepass")).digest()',
        "The name of a codec has no case.",
    ),
    *(
        Equivalent(
            "django_dcron/domain/zones.py", "", _NOT_ZONES, _NOT_ZONES.replace(old, new), LEFT_OUT_BY_PYTHON
        )
        for old, new in (("posixrules", "XXposixrulesXX"), ("posixrules", "POSIXRULES"))
    ),
    Equivalent(
        "django_dcron/domain/load.py",
        "Hours._counted",
        "ahead = (known - self.begin) // _MICROSECOND",
        "ahead = (known - self.begin) / _MICROSECOND",
        "A whole number of microseconds is exact as a float, too.",
    ),
    *(
        Equivalent(file, "", line + _FIELD, line + _FIELD.replace(f"{option}=False", f"{option}=None"), FALSY)
        for file, line in (
            (_CALENDAR, "weekdays: frozenset[int]"),
            (_CALENDAR, "yearly: frozenset[tuple[int, int]]"),
            (_CALENDAR, "ranges: tuple[tuple[date, date], ...]"),
            (_CALENDAR, "holidays: tuple[HolidaysOf, ...]"),
            ("django_dcron/domain/schedule.py", "rule: WallClock | Every | Once | Never"),
        )
        for option in ("compare", "repr")
    ),
    *(
        Equivalent(
            _JSON_VALUES, "storable", _DUMPS, _DUMPS.replace(f"{option}=False", f"{option}=None"), FALSY
        )
        for option in ("ensure_ascii", "allow_nan")
    ),
    Equivalent(
        _JSON_VALUES,
        "storable",
        _ESCAPED_NUL,
        _ESCAPED_NUL.replace('""', '"XXXX"'),
        "Whatever replaces an escaped backslash is not looked at.",
    ),
    *(
        Equivalent(_CHAINS, "", _KEY, _KEY.replace(old, new), TYPES_ONLY)
        for old, new in (
            ('"Key"', '"KEY"'),
            ('"Key"', '"key"'),
            ('"Key"', '"XXKeyXX"'),
            ("bound=Hashable", "bound=None"),
            ("bound=Hashable", ""),
            ('TypeVar("Key", bound=Hashable)', "None"),
        )
    ),
    *(
        Equivalent(
            _DURATIONS,
            "",
            _UNITS,
            _UNITS.replace(f'"{letter}"', f'"{letter.upper()}"'),
            "Only the expression uses it, which ignores case.",
        )
        for letter in "dhms"
    ),
    Equivalent(
        _DURATIONS,
        "read_duration",
        _FULLMATCH,
        _FULLMATCH.replace("0 <", "1 <"),
        "A duration has a digit and a letter: one character is never one.",
    ),
    Equivalent(
        "django_dcron/domain/alerting.py",
        "_read_span",
        "span = None",
        'span = ""',
        "Neither is a timedelta, and the message shows what was given.",
    ),
    *(
        Equivalent(
            "django_dcron/domain/system_health.py",
            "age_in_words",
            _SECONDS,
            _SECONDS.replace("seconds < 5", changed),
            "Five is itself a multiple of five.",
        )
        for changed in ("seconds <= 5", "seconds < 6")
    ),
    Equivalent("django_dcron/domain/clock.py", "", "SAMPLES_KEPT = 8", "SAMPLES_KEPT = 9", TUNING),
    Equivalent(
        "django_dcron/domain/clock.py",
        "ClusterClock.__init__",
        "self._latest: Sample | None = None",
        'self._latest: Sample | None = ""',
        "Only a second sample is compared with it, and ``skew`` asks whether it is true.",
    ),
    # --- rescue ---
    Equivalent(
        _RESCUE,
        "_undelivered",
        'overdue = queued.filter(_overdue_deliveries(now)).select_related("job")[:RESCUED_AT_ONCE]',
        "overdue = queued.filter(_overdue_deliveries(now)).select_related(None)[:RESCUED_AT_ONCE]",
        SAVES_QUERIES,
    ),
    Equivalent(_RESCUE, "", '.values_list("pk")[:1]', '.values_list("pk")[:2]', ANY),
    Equivalent(
        _RESCUE,
        "_undelivered",
        'queued = _in(shards).queued().filter(due_at__lt=now - settings.REDELIVER_AFTER).order_by("due_at")',
        'queued = _in(shards).queued().filter(due_at__lt=now + settings.REDELIVER_AFTER).order_by("due_at")',
        ABOVE,
    ),
)
