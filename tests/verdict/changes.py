"""Record each change of a run's state in a table of its own, by a trigger of PostgreSQL.

A row is part of the transaction that makes the change. Its number grows with the statements, so it
also orders the changes that wait for each other's locks.
"""

from __future__ import annotations

from typing import Any

INSTALL = """
CREATE TABLE verdict_change (
    number bigserial PRIMARY KEY,
    run uuid NOT NULL,
    job bigint NOT NULL,
    old text NOT NULL,
    new text NOT NULL,
    attempts integer NOT NULL,
    due_at timestamptz NOT NULL,
    "trigger" text NOT NULL,
    frees_slot boolean NOT NULL,
    takes_slot boolean NOT NULL
);
CREATE FUNCTION verdict_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO verdict_change
            (run, job, old, new, attempts, due_at, "trigger", frees_slot, takes_slot)
        VALUES (
            NEW.id, NEW.job_id, 'absent', NEW.state, 0, NEW.due_at, NEW."trigger", false,
            coalesce(NEW.slot, '') = 'running'
        );
    ELSIF (OLD.state, OLD.attempt, OLD.slot) IS DISTINCT FROM (NEW.state, NEW.attempt, NEW.slot)
    THEN
        INSERT INTO verdict_change
            (run, job, old, new, attempts, due_at, "trigger", frees_slot, takes_slot)
        VALUES (
            NEW.id, NEW.job_id, OLD.state, NEW.state, NEW.attempt - OLD.attempt, NEW.due_at,
            NEW."trigger",
            coalesce(OLD.slot, '') = 'running' AND coalesce(NEW.slot, '') <> 'running',
            coalesce(OLD.slot, '') <> 'running' AND coalesce(NEW.slot, '') = 'running'
        );
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER verdict_change AFTER INSERT OR UPDATE ON django_dcron_run
    FOR EACH ROW EXECUTE FUNCTION verdict_record();
"""
REMOVE = """
DROP FUNCTION IF EXISTS verdict_record() CASCADE;
DROP TABLE IF EXISTS verdict_change;
"""


def install(cursor: Any) -> None:
    """Begin to record changes, with an empty table."""
    cursor.execute(REMOVE)
    cursor.execute(INSTALL)


def remove(cursor: Any) -> None:
    cursor.execute(REMOVE)
