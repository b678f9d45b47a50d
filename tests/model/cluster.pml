/* Several runs that share a slot, a chain and a backfill, and the lease of their shard, checked by spin.

   run.pml has the life of a single run, with messages that are stale or duplicated. Here, runs meet: each step is one
   transaction of django_dcron/runs, whose guard is its WHERE clause. Nodes act only on the shard that they believe to
   lead. A lease may be lost while its node still believes in it, so both nodes may lead at the same time.

   Runs 0 and 1 are scheduled runs of a job without overlaps, with any of its policies. Run 2 is a backfilled run of the
   same job. Run 3 belongs to another job and follows the end of run 0.

   Checked: the job's runs never overlap, unless an attempt was declared lost while its code still ran (assertion); each
   attempt starts once (assertion); the follower exists if and only if run 0 has ended after a start (assertion); a final
   state is never left (assertion); all runs end (ltl all_end, with a bounded number of faults).

   tests/model/check.py also collects the transitions that the model makes, and compares them with the table
   tests/model/transitions.py. The transitions of simulations are compared with the same table.
*/

#ifndef ATTEMPTS
#define ATTEMPTS 2            /* max_attempts of each run */
#endif
#ifndef FAULTS
#define FAULTS   2
#endif
#define RUNS     4
#define BACKFILLED 2
#define FOLLOWER 3
#define NONE     9

/* the order of tests/model/transitions.py */
#define ABSENT    0
#define PENDING   1
#define QUEUED    2
#define RUNNING   3
#define WAITING   4
#define SUCCEEDED 5
#define FAILED    6
#define SKIPPED   7
#define MISSED    8
#define CANCELLED 9

#define SKIP           0
#define QUEUE_ONE      1
#define QUEUE_ALL      2
#define CANCEL_RUNNING 3

c_decl {
    static unsigned char seen[10][10][2];
    static void report(void) {
        int old, to, more;
        for (old = 0; old < 10; old++) for (to = 0; to < 10; to++) for (more = 0; more < 2; more++)
            if (seen[old][to][more]) printf("transition %d %d %d\n", old, to, more);
    }
}

byte state[RUNS];
byte attempt[RUNS];
byte executing[RUNS];         /* the attempt whose code runs, in any worker; 0: none */
byte started[RUNS];           /* the last attempt that has started */
bool message[RUNS];           /* the broker has a message of the current attempt */
bool cancel_requested[RUNS];
byte slot = NONE;             /* the run that has the job's slot */
byte policy;
bool leads[2];                /* whether the node believes that it leads the shard */
byte faults = 0;
bool overlapped = false;      /* an attempt was declared lost while its code still ran */
bool done = false;
byte from, to, more;          /* for c_code; 0 between the steps */

#define final(r) (state[r] >= SUCCEEDED)
#define fault_left (faults < FAULTS)
#define any_leads (leads[0] || leads[1])
#define of_job(r) (r != FOLLOWER)
#define startable(r) (state[r] == PENDING || state[r] == QUEUED)
#define some_waiting(a, b) (state[a] == WAITING || state[b] == WAITING)
#define worker_is_gone(r) (state[r] == RUNNING && executing[r] != attempt[r])

inline move(r, target, next) {
    assert(!final(r));
    from = state[r]; to = target; more = next;
    c_code { seen[now.from][now.to][now.more] = 1; };
    from = 0; to = 0; more = 0;
    state[r] = target
}

/* The oldest waiting run gets the slot. Backfilled runs don't take part (slot_queue.wake_next). */
inline wake_next() {
    if
    :: slot == NONE && state[0] == WAITING -> move(0, PENDING, 0); slot = 0; message[0] = false
    :: slot == NONE && state[0] != WAITING && state[1] == WAITING -> move(1, PENDING, 0); slot = 1; message[1] = false
    :: else
    fi
}

inline free_slot(r) {
    if
    :: slot == r -> slot = NONE; wake_next()
    :: else
    fi
}

/* transitions._end: the state, the slot, the next run and the followers, in one transaction */
inline finish(r, target) {
    move(r, target, 0);
    message[r] = false;
    free_slot(r);
    if
    :: r == 0 && (target == SUCCEEDED || target == FAILED || (target == CANCELLED && started[0] != 0)) ->
        assert(state[FOLLOWER] == ABSENT); move(FOLLOWER, PENDING, 0); attempt[FOLLOWER] = 1
    :: else
    fi
}

inline retry_or_fail(r) {
    if
    :: cancel_requested[r] -> finish(r, CANCELLED)
    :: !cancel_requested[r] && attempt[r] < ATTEMPTS ->
        move(r, PENDING, 1);
        attempt[r]++;
        message[r] = false;
        if
        :: r == BACKFILLED && slot == r -> slot = NONE; wake_next()
        :: else                /* an unfinished run keeps its slot */
        fi
    :: !cancel_requested[r] && attempt[r] >= ATTEMPTS -> finish(r, FAILED)
    fi
}

inline begin(r) {
    move(r, RUNNING, 0);
    assert(attempt[r] == started[r] + 1);
    started[r] = attempt[r];
    executing[r] = attempt[r];
    if
    :: of_job(r) ->
        assert(overlapped || (executing[0] == 0 || r == 0) && (executing[1] == 0 || r == 1) && (executing[2] == 0 || r == 2));
        assert(slot == NONE || slot == r);
        slot = r
    :: else
    fi
}

/* policies/start_decision.py, in one transaction that locks the holder of the slot */
inline decide_start(r) {
    message[r] = false;
    if
    :: !startable(r)          /* a second delivery: dropped */
    :: startable(r) && cancel_requested[r] -> finish(r, CANCELLED)
    :: startable(r) && !cancel_requested[r] && (!of_job(r) || slot == NONE || slot == r) -> begin(r)
    :: startable(r) && !cancel_requested[r] && of_job(r) && slot != NONE && slot != r ->
        if
        :: r == BACKFILLED || policy == QUEUE_ALL -> move(r, WAITING, 0)
        :: r != BACKFILLED && policy == SKIP && slot != BACKFILLED -> finish(r, SKIPPED)
        :: r != BACKFILLED && policy == CANCEL_RUNNING && slot != BACKFILLED && slot > r -> finish(r, SKIPPED)
        :: r != BACKFILLED && (policy == QUEUE_ONE || (policy == SKIP && (slot == BACKFILLED || worker_is_gone(slot)))) ->
            if
            :: some_waiting(0, 1) -> finish(r, SKIPPED)
            :: else -> move(r, WAITING, 0)
            fi
        :: r != BACKFILLED && policy == CANCEL_RUNNING && (slot == BACKFILLED || slot < r) ->
            if
            :: state[1 - r] == WAITING && 1 - r > r -> finish(r, SKIPPED)
            :: state[1 - r] == WAITING && 1 - r < r -> finish(1 - r, SKIPPED); move(r, WAITING, 0)
            :: state[1 - r] != WAITING && slot == BACKFILLED -> move(r, WAITING, 0)
            :: state[1 - r] != WAITING && slot != BACKFILLED && state[slot] == RUNNING ->
                cancel_requested[slot] = true; move(r, WAITING, 0)
            :: state[1 - r] != WAITING && slot != BACKFILLED && state[slot] != RUNNING ->
                finish(1 - r, CANCELLED);
                if
                :: slot == NONE -> begin(r)
                :: else -> message[r] = true          /* another run was woken: decide again */
                fi
            fi
        fi
    fi
}

/* a node's steps for the run r */
#define NODE_STEPS(r) \
    :: d_step { any_leads && r < BACKFILLED && state[r] == ABSENT -> move(r, PENDING, 0); attempt[r] = 1 } \
    :: d_step { any_leads && state[r] == PENDING && !message[r] -> message[r] = true; move(r, QUEUED, 0) } \
    :: d_step { any_leads && state[r] == PENDING && fault_left -> faults++; message[r] = true /* died before the mark */ } \
    :: d_step { any_leads && state[r] == QUEUED && !message[r] -> move(r, PENDING, 0) }

/* A rescue. An end that is too late: another delivery may have let the run wait meanwhile. */
#define RESCUE_STEPS(r) \
    :: atomic { any_leads && state[r] == RUNNING && executing[r] != attempt[r] -> retry_or_fail(r) } \
    :: atomic { any_leads && state[r] == RUNNING && fault_left -> faults++; overlapped = true; retry_or_fail(r) } \
    :: atomic { (startable(r) || state[r] == WAITING) && fault_left -> faults++; finish(r, MISSED) } \
    :: atomic { any_leads && state[r] == WAITING && r != BACKFILLED && slot == NONE -> wake_next() }

#define WORKER_STEPS(r) \
    :: atomic { message[r] && (state[r] == PENDING || state[r] == QUEUED) -> decide_start(r) } \
    :: d_step { message[r] && state[r] != PENDING && state[r] != QUEUED -> message[r] = false } \
    :: atomic { executing[r] != 0 && state[r] == RUNNING && executing[r] == attempt[r] && !cancel_requested[r] -> \
        executing[r] = 0; finish(r, SUCCEEDED) } \
    :: atomic { executing[r] != 0 && state[r] == RUNNING && executing[r] == attempt[r] -> \
        executing[r] = 0; retry_or_fail(r) } \
    :: d_step { executing[r] != 0 && !(state[r] == RUNNING && executing[r] == attempt[r]) -> \
        executing[r] = 0 /* it was declared lost: changes nothing */ } \
    :: d_step { executing[r] != 0 && fault_left -> faults++; executing[r] = 0 /* the worker dies */ } \
    :: d_step { message[r] && fault_left -> faults++; message[r] = false /* the broker loses it */ }

/* People cancel. A frozen job's run returns to the nodes. */
#define PEOPLE_STEPS(r) \
    :: atomic { (startable(r) || state[r] == WAITING) && fault_left -> faults++; finish(r, CANCELLED) } \
    :: d_step { state[r] == RUNNING && fault_left -> faults++; cancel_requested[r] = true } \
    :: d_step { startable(r) && message[r] && fault_left -> faults++; message[r] = false; move(r, PENDING, 0) } \
    :: atomic { state[r] == PENDING && fault_left -> faults++; finish(r, FAILED) /* no such queue */ }

active proctype cluster() {
    c_code { atexit(report); };
    atomic {
        select(policy : SKIP .. CANCEL_RUNNING);
        move(BACKFILLED, WAITING, 0); attempt[BACKFILLED] = 1
    };
    do
    /* the lease: taken if nobody has it; lost, while the node still believes in it */
    :: d_step { !any_leads -> leads[0] = true }
    :: d_step { leads[0] && !leads[1] && fault_left -> faults++; leads[1] = true }
    :: d_step { leads[0] && fault_left -> faults++; leads[0] = false }

    NODE_STEPS(0) NODE_STEPS(1) NODE_STEPS(2) NODE_STEPS(3)
    RESCUE_STEPS(0) RESCUE_STEPS(1) RESCUE_STEPS(2) RESCUE_STEPS(3)
    WORKER_STEPS(0) WORKER_STEPS(1) WORKER_STEPS(2) WORKER_STEPS(3)
    PEOPLE_STEPS(0) PEOPLE_STEPS(1) PEOPLE_STEPS(2) PEOPLE_STEPS(3)

    /* scheduler/backfill_release.py: the slot is free, and no scheduled run waits for it */
    :: d_step { any_leads && state[BACKFILLED] == WAITING && slot == NONE -> move(BACKFILLED, PENDING, 0) }

    :: else -> break          /* nothing is left to do */
    od;
    assert(final(0) && final(1) && final(2) && (final(3) || state[3] == ABSENT));
    assert((state[3] != ABSENT) ==
        (state[0] == SUCCEEDED || state[0] == FAILED || (state[0] == CANCELLED && started[0] != 0)));
    done = true
}

ltl all_end { <> done }
