-- What recurs. Temporal's schedule only wakes us; what was handled and what is owed is here and in trigger_log (STORE-5).
CREATE TABLE schedules (
    tenant          text NOT NULL REFERENCES tenants,
    schedule_id     uuid NOT NULL,         -- derived from the idempotency key
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    kind            text NOT NULL CHECK (kind IN ('notification', 'campaign')),
    body_hmac       bytea NOT NULL,
    name            text NOT NULL DEFAULT '',
    category        text NOT NULL,
    recipient_id    text,
    content         bytea NOT NULL,        -- sealed; what each run says
    cron            text,
    every_seconds   int CHECK (every_seconds > 0),
    zone            text NOT NULL,
    overlap         text NOT NULL CHECK (overlap IN ('skip', 'allow')),
    catch_up        text NOT NULL CHECK (catch_up IN ('all', 'latest', 'none')),
    catch_up_seconds int NOT NULL CHECK (catch_up_seconds >= 0),
    catch_up_max    int NOT NULL CHECK (catch_up_max > 0),
    jitter_seconds  int NOT NULL CHECK (jitter_seconds >= 0),
    state           text NOT NULL CHECK (state IN ('active', 'paused', 'deleted')),
    version         int NOT NULL DEFAULT 1,
    applied_version int NOT NULL DEFAULT 0, -- what Temporal has been told
    handled_until   timestamptz NOT NULL,  -- every scheduled time up to here has its line in trigger_log
    next_at         timestamptz NOT NULL,  -- the first one after it
    created_by      text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, schedule_id),
    CHECK ((cron IS NULL) <> (every_seconds IS NULL))
);
CREATE INDEX schedules_by_next ON schedules (next_at) WHERE state = 'active';
CREATE INDEX schedules_unapplied ON schedules (updated_at) WHERE applied_version <> version;

-- A line may stand for many runs in a row that were left out: `missed` of them, up to `missed_until`.
ALTER TABLE trigger_log ADD COLUMN missed int NOT NULL DEFAULT 0, ADD COLUMN missed_until timestamptz, ADD COLUMN reason text NOT NULL DEFAULT '';
CREATE INDEX trigger_log_owed ON trigger_log (scheduled_for) WHERE status = 'owed';
CREATE INDEX trigger_log_by_time ON trigger_log (tenant, scheduled_for);
CREATE INDEX trigger_log_missed ON trigger_log (tenant, missed_until) WHERE missed_until IS NOT NULL;

CREATE TABLE reminder_series (
    tenant         text NOT NULL REFERENCES tenants,
    series_id      uuid NOT NULL,          -- derived from the idempotency key
    mode           text NOT NULL CHECK (mode IN ('live', 'test')),
    body_hmac      bytea NOT NULL,
    category       text NOT NULL,
    recipient_id   text NOT NULL,
    correlation_id text NOT NULL,
    event_at       timestamptz,
    event_local    text,
    content        bytea NOT NULL,         -- sealed; variables, templates, offsets
    state          text NOT NULL CHECK (state IN ('active', 'cancelled')),
    version        int NOT NULL DEFAULT 1,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, series_id),
    CHECK ((event_at IS NULL) <> (event_local IS NULL))
);
