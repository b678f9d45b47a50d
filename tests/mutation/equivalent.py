"""Mutants that no test has to kill, each with the reason. Samples leave them out.

An entry contains the file, the function, and the full changed lines before and after. A stale
entry, which matches no mutant, is reported.
"""

from __future__ import annotations

from typing import NamedTuple


class Equivalent(NamedTuple):
    file: str
    function: str
    """Empty for code that runs at import."""
    before: str
    after: str
    reason: str


ALL_COLUMNS = "Django reads the names only if some columns are missing."
ONE_TOKEN = "A token belongs to one attempt of one run."
SAVES_QUERIES = "The code only saves a query for each row."
ANY = "The query only checks whether any row exists."
TUNING = "A limit chosen for speed; one more or less affects no guarantee."
NOT_STORED = "An internal name that no row, page or message contains."
OMITTED_BY_PYTHON = "``available_timezones`` omits this name anyway."
FIRST_COLUMN = "The first column is the key."
FALSY = "``None`` is as falsy as ``False``."
TYPES_ONLY = "Only type checkers read it."
ABOVE = (
    "Another condition of the same query includes this one; this one lets the database use an "
    "index."
)

_CALENDAR = "django_dcron/schedules/calendar.py"
_CHAINS = "django_dcron/policies/chains.py"
_CLAIMING = "django_dcron/scheduler/claim.py"
_DURATIONS = "django_dcron/utils/durations.py"
_JSON_VALUES = "django_dcron/utils/json_values.py"
_RESCUE = "django_dcron/scheduler/rescue.py"
_RETRY = "django_dcron/policies/retry.py"
_START = "django_dcron/runs/start.py"
_START_FACTS = "django_dcron/runs/start_facts.py"
_START_DECISION = "django_dcron/policies/start_decision.py"
_COMPLETION = "django_dcron/runs/completion.py"
_ENDINGS = "django_dcron/runs/endings.py"

_NOT_ZONES = '_NOT_ZONES = {"localtime", "posixrules", "Factory"}'
_FIELD = " = field(compare=False, repr=False)"
_DUMPS = "text = json.dumps(value, ensure_ascii=False, allow_nan=False)"
_ESCAPED_NUL = r"""if r"\u0000" in text.replace(r"\\", ""):"""
_UNITS = {
    '"weeks": "w(?:eeks?)?",': '"weeks": "W(?:EEKS?)?",',
    '"days": "d(?:ays?)?",': '"days": "D(?:AYS?)?",',
    '"hours": "h(?:ours?)?",': '"hours": "H(?:OURS?)?",',
    '"minutes": "m(?:in(?:ute)?s?)?",': '"minutes": "M(?:IN(?:UTE)?S?)?",',
    '"seconds": "s(?:ec(?:ond)?s?)?",': '"seconds": "S(?:EC(?:OND)?S?)?",',
}
_KEY = 'Key = TypeVar("Key", bound=Hashable)'
_SECONDS = '_("%(number)d s"), number=seconds if seconds < 5 else seconds // 5 * 5'
_FULLMATCH = "match = _FRIENDLY.fullmatch(plain) if 0 < len(plain) <= MAX_LENGTH else None"
_DUE = 'return Select(Cursor, lambda: _due(shards, of, namespace).values_list("pk")[:1])'

_OVERDUE = (
    'queued.filter(deliveries.overdue(now)).not_frozen().select_related("job")[:RESCUED_AT_ONCE]'
)
_HOLDER_NEWER = (
    "if facts.overlap is OverlapPolicy.CANCEL_RUNNING and holder.scheduled_at > facts.scheduled_at:"
)
_NEXT_NEWER = "if next_in_line is not None and next_in_line.scheduled_at > facts.scheduled_at:"

EQUIVALENT: tuple[Equivalent, ...] = (
    # --- start ---
    Equivalent(
        _START,
        "_resume",
        "attempt = Attempt.objects.using(alias_for(Attempt)).filter(run=run, token=token).first()",
        "attempt = Attempt.objects.using(alias_for(Attempt)).filter(token=token).first()",
        ONE_TOKEN,
    ),
    Equivalent(
        _ENDINGS,
        "_executing",
        'Exists(Attempt.objects.filter(run=OuterRef("pk"), token=last_heartbeat.token))',
        "Exists(Attempt.objects.filter(token=last_heartbeat.token))",
        ONE_TOKEN,
    ),
    Equivalent(
        _COMPLETION,
        "record_late_outcome",
        (
            "own = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk, token=token, "
            'late_outcome="")'
        ),
        'own = Attempt.objects.using(alias_for(Attempt)).filter(token=token, late_outcome="")',
        ONE_TOKEN,
    ),
    Equivalent(
        _START_FACTS,
        "run_as_read",
        "run = Run.from_db(using, _RUN, columns[: len(_RUN)])",
        "run = Run.from_db(using, None, columns[: len(_RUN)])",
        ALL_COLUMNS,
    ),
    *(
        Equivalent(
            _START_DECISION,
            function,
            line,
            line.replace(" > ", " >= "),
            "Two runs of a job never share ``scheduled_at``.",
        )
        for function, line in (
            ("_decide_overlap", _HOLDER_NEWER),
            ("_decide_replacement", _NEXT_NEWER),
        )
    ),
    Equivalent(_START, "", "MAX_TRIES = 10", "MAX_TRIES = 11", TUNING),
    # --- claiming ---
    Equivalent(_CLAIMING, "_any_due", _DUE, _DUE.replace("[:1]", "[:2]"), ANY),
    *(
        Equivalent(
            _CLAIMING,
            "_without_locked_rows",
            line,
            line.replace('"pk", ', ""),
            FIRST_COLUMN,
        )
        for line in (
            'present = set(jobs.values_list("pk", flat=True))',
            'locked_jobs = present - set(lockable.values_list("pk", flat=True))',
        )
    ),
    Equivalent(_CLAIMING, "", "CLAIMED_AT_ONCE = 2000", "CLAIMED_AT_ONCE = 2001", TUNING),
    # --- schedules, policies, utilities and the clock ---
    *(
        Equivalent(_RETRY, "", f'{name} = "{name.lower()}"', f'{name} = "{value}"', NOT_STORED)
        for name in ("TRANSIENT", "CONTENTION", "PERMANENT")
        for value in (name, f"XX{name.lower()}XX")
    ),
    Equivalent(
        "django_dcron/schedules/hashing.py",
        "hashed_value",
        'digest = sha256(f"{field}\\n{key}".encode("utf-8", "surrogatepass")).digest()',
        'digest = sha256(f"{field}\\n{key}".encode("UTF-8", "surrogatepass")).digest()',
        "Names of codecs are case-insensitive.",
    ),
    *(
        Equivalent(
            "django_dcron/schedules/zones.py",
            "",
            _NOT_ZONES,
            _NOT_ZONES.replace(old, new),
            OMITTED_BY_PYTHON,
        )
        for old, new in (("posixrules", "XXposixrulesXX"), ("posixrules", "POSIXRULES"))
    ),
    Equivalent(
        "django_dcron/schedules/load.py",
        "RealHours._occurrences_per_unit",
        "ahead = (phase - self.begin) // _MICROSECOND",
        "ahead = (phase - self.begin) / _MICROSECOND",
        "A whole number of microseconds is exact as a float, too.",
    ),
    *(
        Equivalent(
            file,
            "",
            line + _FIELD,
            line + _FIELD.replace(f"{option}=False", f"{option}=None"),
            FALSY,
        )
        for file, line in (
            (_CALENDAR, "weekdays: frozenset[int]"),
            (_CALENDAR, "yearly: frozenset[tuple[int, int]]"),
            (_CALENDAR, "ranges: tuple[DateRange, ...]"),
            (_CALENDAR, "holidays: tuple[HolidaysOf, ...]"),
            ("django_dcron/schedules/schedule.py", "rule: Rule"),
        )
        for option in ("compare", "repr")
    ),
    *(
        Equivalent(
            _JSON_VALUES,
            "check_storable",
            _DUMPS,
            _DUMPS.replace(f"{option}=False", f"{option}=None"),
            FALSY,
        )
        for option in ("ensure_ascii", "allow_nan")
    ),
    Equivalent(
        _JSON_VALUES,
        "check_storable",
        _ESCAPED_NUL,
        _ESCAPED_NUL.replace('""', '"XXXX"'),
        "The replacement of an escaped backslash isn't read.",
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
            before,
            after,
            "Only a regular expression that ignores case uses it.",
        )
        for before, after in _UNITS.items()
    ),
    Equivalent(
        _DURATIONS,
        "parse_duration_text",
        _FULLMATCH,
        _FULLMATCH.replace("0 <", "1 <"),
        "A duration needs a digit and a letter, so one character is never a duration.",
    ),
    Equivalent(
        "django_dcron/policies/alerting.py",
        "_read_span",
        "span = None",
        'span = ""',
        "Neither is a timedelta, and the message shows what was given.",
    ),
    *(
        Equivalent(
            "django_dcron/policies/health/problems.py",
            "age_text",
            _SECONDS,
            _SECONDS.replace("seconds < 5", changed),
            "Five is itself a multiple of five.",
        )
        for changed in ("seconds <= 5", "seconds < 6")
    ),
    Equivalent("django_dcron/db/clock.py", "", "SAMPLES_KEPT = 8", "SAMPLES_KEPT = 9", TUNING),
    Equivalent(
        "django_dcron/db/clock.py",
        "ClusterClock.__init__",
        "self._latest: ClockSample | None = None",
        'self._latest: ClockSample | None = ""',
        "Only a second sample is compared with it, and ``skew`` checks its truth value.",
    ),
    # --- rescue ---
    Equivalent(
        _RESCUE,
        "_redeliver_overdue",
        _OVERDUE,
        _OVERDUE.replace('"job"', "None"),
        SAVES_QUERIES,
    ),
    Equivalent(
        _RESCUE,
        "_recover_lost_attempts",
        '.select_related("job")',
        ".select_related(None)",
        SAVES_QUERIES,
    ),
    Equivalent(
        "django_dcron/runs/deliveries.py",
        "overdue",
        "for number in range(DOUBLINGS + 1):",
        "for number in range(DOUBLINGS + 2):",
        "For one more delivery, the added condition equals the first one.",
    ),
    Equivalent(
        _RESCUE,
        "_locked_run_ids",
        'return frozenset(run_ids).difference(lockable.values_list("pk", flat=True))',
        "return frozenset(run_ids).difference(lockable.values_list(flat=True))",
        FIRST_COLUMN,
    ),
    Equivalent(
        _RESCUE,
        "_locked_run_ids",
        'run_ids = list(silent.values_list("pk", flat=True)[:RESCUED_AT_ONCE])',
        "run_ids = list(silent.values_list(flat=True)[:RESCUED_AT_ONCE])",
        FIRST_COLUMN,
    ),
    Equivalent(_RESCUE, "", "RESCUED_AT_ONCE = 500", "RESCUED_AT_ONCE = 501", TUNING),
    Equivalent(_RESCUE, "", '.values_list("pk")[:1]', '.values_list("pk")[:2]', ANY),
    Equivalent(
        _RESCUE,
        "_redeliver_overdue",
        ".filter(due_at__lt=now - settings.REDELIVER_AFTER)",
        ".filter(due_at__lt=now + settings.REDELIVER_AFTER)",
        ABOVE,
    ),
)
