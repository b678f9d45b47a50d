/* The life of one run of django-dcron: claim, publish, mark, start, finish and rescue, checked by spin.

   Two nodes and two workers act in any order. A node or worker may crash before any step, forgetting what it knew, and
   start again; it may also be suspended for any time, which is the same as not being chosen: what it knew is then stale.
   The broker may lose a message or deliver it twice. Only the row is shared, and every change of it is one guarded
   UPDATE, that is, one atomic step whose guard is its WHERE clause (django_dcron/runs/transitions.py).

   Checked: an attempt never starts twice (assertion), a final state is never left (assertion), and the run reaches a
   final state, whatever was lost and whoever crashed (ltl no_lost_run, under weak fairness, with a bounded number of
   faults: an unbounded one could keep anything from happening).

   spin -a run.pml && cc -O2 -o pan pan.c && ./pan -a -f -m100000
*/

#define ATTEMPTS 2            /* max_attempts of the job */
#define FAULTS   3            /* crashes, losses, duplicates and false alarms, together */

mtype = { absent, pending, queued, running, succeeded, failed };

/* the row */
mtype state = absent;
byte attempt = 1;

/* the broker: how many copies of the message of each attempt are on their way */
byte messages[ATTEMPTS + 1];

byte starts[ATTEMPTS + 1];
byte alive[2];                /* the attempt worker w believes it executes; 0: none */
byte faults = 0;

#define final (state == succeeded || state == failed)
#define fault_left (faults < FAULTS)

inline move(to) { assert(!final); state = to }

/* What the end of an attempt leads to, for its worker and for the rescuer alike (runs/completion.py). */
inline retry_or_fail() {
    if
    :: attempt < ATTEMPTS -> move(pending); attempt++
    :: else -> move(failed)
    fi
}

active [2] proctype node() {
    byte agenda = 0;          /* the attempt on its agenda; 0: none */
    byte delivered = 0;       /* handed over, not marked yet */
end:
    do
    /* claim: the insert that conflicts is ignored */
    :: atomic { state == absent -> state = pending; agenda = 1 }

    /* adopt: whatever is pending, its own or another's, a retry or what a dead node left */
    :: atomic { state == pending && agenda == 0 && delivered == 0 -> agenda = attempt }

    /* publish: needs no database, so what it publishes may be stale */
    :: atomic { agenda != 0 && messages[agenda] < 2 -> messages[agenda]++; delivered = agenda; agenda = 0 }

    /* mark: pending -> queued, this attempt only */
    :: atomic { delivered != 0 ->
        if
        :: state == pending && attempt == delivered -> move(queued)
        :: else                /* someone was faster */
        fi;
        delivered = 0 }

    /* redeliver: queued for so long that the message must be lost (or has it only been slow?) */
    :: atomic { state == queued && messages[attempt] == 0 -> move(pending) }
    :: atomic { state == queued && messages[attempt] > 0 && fault_left -> faults++; move(pending) }

    /* rescue: the heartbeat is stale, because the worker is dead, or only suspended */
    :: atomic { state == running && alive[0] != attempt && alive[1] != attempt -> retry_or_fail() }
    :: atomic { state == running && fault_left -> faults++; retry_or_fail() }

    /* crash: what was in memory is gone */
    :: atomic { (agenda != 0 || delivered != 0) && fault_left -> faults++; agenda = 0; delivered = 0 }
    od
}

active [2] proctype worker() {
    byte got = 0;             /* the attempt of the message in hand; 0: none */
    byte me = _pid - 2;
end:
    do
    /* receive: acknowledged late, but a copy may come again (below) */
    :: atomic { got == 0 && alive[me] == 0 && messages[1] > 0 -> messages[1]--; got = 1 }
    :: atomic { got == 0 && alive[me] == 0 && messages[2] > 0 -> messages[2]--; got = 2 }

    /* start: pending or queued -> running, this attempt only */
    :: atomic { got != 0 ->
        if
        :: (state == pending || state == queued) && attempt == got ->
            move(running); alive[me] = got; starts[got]++; assert(starts[got] == 1)
        :: else                /* a second delivery: dropped */
        fi;
        got = 0 }

    /* finish: running, this attempt only; it may have been declared lost meanwhile */
    :: atomic { alive[me] != 0 ->
        if
        :: state == running && attempt == alive[me] -> move(succeeded)
        :: state == running && attempt == alive[me] -> retry_or_fail()
        :: !(state == running && attempt == alive[me])
        fi;
        alive[me] = 0 }

    /* crash: before the start or in the middle of the work */
    :: atomic { (got != 0 || alive[me] != 0) && fault_left -> faults++; got = 0; alive[me] = 0 }
    od
}

active proctype broker() {
end:
    do
    :: atomic { messages[1] > 0 && fault_left -> faults++; messages[1]-- }
    :: atomic { messages[2] > 0 && fault_left -> faults++; messages[2]-- }
    :: atomic { messages[1] == 1 && fault_left -> faults++; messages[1]++ }
    :: atomic { messages[2] == 1 && fault_left -> faults++; messages[2]++ }
    od
}

ltl no_lost_run { <> final }
