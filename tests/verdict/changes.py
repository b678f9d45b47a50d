"""Record each change of a run's state, and each definition of a limit, by triggers of PostgreSQL.

A row is part of the transaction that makes the change. Its number grows with the statements, so it
also orders the changes that wait for each other's locks.
"""

from __future__ import annotations

from typing import Any

INSTALL = """
CREATE SEQUENCE verdict_number;
CREATE TABLE verdict_change (
    number bigint PRIMARY KEY DEFAULT nextval('verdict_number'),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    run uuid NOT NULL,
    job bigint NOT NULL,
    old text NOT NULL,
    new text NOT NULL,
    attempts integer NOT NULL,
    due_at timestamptz NOT NULL,
    "trigger" text NOT NULL,
    frees_slot boolean NOT NULL,
    takes_slot boolean NOT NULL,
    limited boolean NOT NULL,
    "limit" text,
    template text,
    args jsonb,
    kwargs jsonb
);
CREATE TABLE verdict_limit (
    number bigint PRIMARY KEY DEFAULT nextval('verdict_number'),
    name text NOT NULL,
    key text NOT NULL,
    max_running integer,
    max_started integer,
    "interval" interval
);
CREATE FUNCTION verdict_record() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_state text := 'absent';
    old_attempt integer := NEW.attempt;
    old_slot text := '';
    new_slot text := coalesce(NEW.slot, '');
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF (OLD.state, OLD.attempt, OLD.slot) IS NOT DISTINCT FROM
            (NEW.state, NEW.attempt, NEW.slot)
        THEN
            RETURN NULL;
        END IF;
        old_state := OLD.state;
        old_attempt := OLD.attempt;
        old_slot := coalesce(OLD.slot, '');
    END IF;
    INSERT INTO verdict_change
        (run, job, old, new, attempts, due_at, "trigger", frees_slot, takes_slot, limited,
        "limit", template, args, kwargs)
    SELECT NEW.id, NEW.job_id, old_state, NEW.state, NEW.attempt - old_attempt, NEW.due_at,
        NEW."trigger", old_slot = 'running' AND new_slot <> 'running',
        old_slot <> 'running' AND new_slot = 'running', NEW.limited,
        l.name, l.key, coalesce(NEW.args, j.args), coalesce(NEW.kwargs, j.kwargs)
    FROM django_dcron_job j LEFT JOIN django_dcron_limit l ON l.name = j.limit_id
    WHERE j.id = NEW.job_id;
    RETURN NULL;
END $$;
CREATE TRIGGER verdict_change AFTER INSERT OR UPDATE ON django_dcron_run
    FOR EACH ROW EXECUTE FUNCTION verdict_record();
CREATE FUNCTION verdict_record_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO verdict_limit (name, key, max_running, max_started, "interval")
    VALUES (NEW.name, NEW.key, NEW.max_running, NEW.max_started, NEW."interval");
    RETURN NULL;
END $$;
CREATE TRIGGER verdict_limit AFTER INSERT OR UPDATE ON django_dcron_limit
    FOR EACH ROW EXECUTE FUNCTION verdict_record_limit();
INSERT INTO verdict_limit (name, key, max_running, max_started, "interval")
SELECT name, key, max_running, max_started, "interval" FROM django_dcron_limit;
"""
REMOVE = """
DROP FUNCTION IF EXISTS verdict_record() CASCADE;
DROP FUNCTION IF EXISTS verdict_record_limit() CASCADE;
DROP TABLE IF EXISTS verdict_change, verdict_limit;
DROP SEQUENCE IF EXISTS verdict_number;
"""


def install(cursor: Any) -> None:
    """Begin to record changes, with empty tables."""
    cursor.execute(REMOVE)
    cursor.execute(INSTALL)


def remove(cursor: Any) -> None:
    cursor.execute(REMOVE)
