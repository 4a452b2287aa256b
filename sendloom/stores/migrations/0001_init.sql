-- Every table has the tenant in its key. decisions, deliveries and claims are partitioned by frozen time (launch, fire or
-- accept time, fixed once and carried by the caller), because uniqueness holds only inside a partition key. Their keys begin with
-- what tells rows apart soonest: the same key with tenant and time in front made every insert a quarter dearer.
--
-- Indexes beside the primary key share no leading column with it where a hot statement reads by the primary key. A plan is made
-- once, often while a table or a month's partition is still empty; then two indexes that both fit cost the same, and the planner
-- takes either: we saw it read a whole tenant instead of one row. A test looks at these plans.

-- One recipient of one tenant, as an index key; no tenant has a '/' in its name.
CREATE FUNCTION person(tenant text, recipient_id text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT tenant || '/' || recipient_id $$;

CREATE TABLE tenants (
    tenant          text PRIMARY KEY CHECK (tenant ~ '^[a-z0-9][a-z0-9-]{0,31}$'),
    name            text NOT NULL,
    default_zone    text NOT NULL DEFAULT 'UTC',
    default_locale  text NOT NULL DEFAULT 'en',
    default_region  text NOT NULL DEFAULT 'US',
    email_from      text,                  -- allow-listed From address, for example news@example.com
    email_from_name text NOT NULL DEFAULT '',
    sms_from        text,
    quiet_start     time NOT NULL DEFAULT '22:00',
    quiet_end       time NOT NULL DEFAULT '08:00',
    settings        jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL DEFAULT now(),
    disabled_at     timestamptz
);

CREATE TABLE api_keys (
    tenant      text NOT NULL REFERENCES tenants,
    key_id      text NOT NULL,
    secret_hash bytea NOT NULL,            -- SHA-256 of the 256-bit random secret
    kind        text NOT NULL CHECK (kind IN ('live', 'team', 'test')),
    scopes      text[] NOT NULL,
    categories  text[],                    -- null: all
    label       text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    PRIMARY KEY (tenant, key_id)
);

CREATE TABLE kill_switches (
    tenant text NOT NULL REFERENCES tenants,
    scope  text NOT NULL CHECK (scope IN ('tenant', 'category', 'lane', 'campaign')),
    name   text NOT NULL,
    reason text NOT NULL,
    by     text NOT NULL,
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, scope, name)
);

CREATE TABLE categories (
    tenant           text NOT NULL REFERENCES tenants,
    category         text NOT NULL,
    message_class    text NOT NULL CHECK (message_class IN ('security', 'transactional', 'marketing')),
    ladder           text[] NOT NULL,      -- channels, first tried first
    ttl_seconds      int NOT NULL CHECK (ttl_seconds > 0),
    quiet_hours      boolean NOT NULL DEFAULT false,
    consent_required boolean NOT NULL DEFAULT false,
    unknown_policy   text NOT NULL CHECK (unknown_policy IN ('resend', 'stop')),
    priority         smallint NOT NULL DEFAULT 3 CHECK (priority BETWEEN 1 AND 5),
    caps             jsonb NOT NULL DEFAULT '[]',  -- [{scope, per, limit}], see sendloom/domain/frequency.py
    over_cap         text NOT NULL DEFAULT 'suppress' CHECK (over_cap IN ('suppress', 'defer')),
    created_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, category)
);

CREATE TABLE recipients (
    tenant       text NOT NULL REFERENCES tenants,
    recipient_id text NOT NULL,
    locale       text,
    zone         text,                     -- IANA name, never an offset
    attributes   jsonb NOT NULL DEFAULT '{}',
    internal     boolean NOT NULL DEFAULT false,  -- may receive test sends
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    erased_at    timestamptz,
    PRIMARY KEY (tenant, recipient_id)
);

CREATE TABLE addresses (
    tenant       text NOT NULL,
    recipient_id text NOT NULL,
    channel      text NOT NULL CHECK (channel IN ('email', 'sms')),
    address_hash bytea NOT NULL,           -- keyed HMAC of the lookup form
    sealed       bytea NOT NULL,           -- AES-GCM of the deliverable form
    verified_at  timestamptz,
    dead_at      timestamptz,
    dead_reason  text,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, recipient_id, channel)
);
-- The hash is keyed by tenant and channel, so it is enough alone.
CREATE INDEX addresses_by_hash ON addresses (address_hash);

CREATE TABLE devices (
    tenant        text NOT NULL,
    recipient_id  text NOT NULL,
    device_id     text NOT NULL,
    channel       text NOT NULL CHECK (channel IN ('apns', 'fcm')),
    token_hash    bytea NOT NULL,
    sealed        bytea NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz NOT NULL DEFAULT now(),
    disabled_at   timestamptz,
    PRIMARY KEY (tenant, recipient_id, device_id)
);
CREATE UNIQUE INDEX devices_by_token ON devices (token_hash);

CREATE TABLE preferences (
    tenant       text NOT NULL,
    recipient_id text NOT NULL,
    category     text NOT NULL,            -- '*': all marketing
    channel      text NOT NULL,            -- '*': all channels
    opted_out    boolean NOT NULL,
    source       text NOT NULL,
    changed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, recipient_id, category, channel)
);
CREATE INDEX preferences_recent_opt_outs ON preferences (changed_at) WHERE opted_out;

CREATE TABLE consents (
    tenant       text NOT NULL,
    recipient_id text NOT NULL,
    category     text NOT NULL,
    channel      text NOT NULL,
    granted      boolean NOT NULL,
    at           timestamptz NOT NULL,
    source       text NOT NULL,
    wording      text NOT NULL,
    PRIMARY KEY (tenant, recipient_id, category, channel)
);
CREATE TABLE consent_events (
    tenant       text NOT NULL,
    recipient_id text NOT NULL,
    category     text NOT NULL,
    channel      text NOT NULL,
    at           timestamptz NOT NULL,
    granted      boolean NOT NULL,
    source       text NOT NULL,
    wording      text NOT NULL,
    PRIMARY KEY (tenant, recipient_id, category, channel, at)
);

CREATE TABLE suppressions (
    tenant       text NOT NULL,
    channel      text NOT NULL,
    address_hash bytea NOT NULL,
    reason       text NOT NULL,            -- hard_bounce, complaint, stop, manual
    source       text NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, channel, address_hash)
);

CREATE TABLE templates (
    tenant          text NOT NULL REFERENCES tenants,
    template_id     text NOT NULL,
    current_version int,                   -- null: nothing published yet
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, template_id)
);
CREATE TABLE template_versions (
    tenant       text NOT NULL,
    template_id  text NOT NULL,
    version      int NOT NULL,
    variables    jsonb NOT NULL,           -- {name: {default?: text}}
    default_locale text NOT NULL,
    published_at timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, template_id, version),
    FOREIGN KEY (tenant, template_id) REFERENCES templates
);
CREATE TABLE template_parts (
    tenant      text NOT NULL,
    template_id text NOT NULL,
    version     int NOT NULL,
    channel     text NOT NULL,
    locale      text NOT NULL,
    subject     text,                      -- email subject, push title
    text        text NOT NULL,
    html        text,
    PRIMARY KEY (tenant, template_id, version, channel, locale),
    FOREIGN KEY (tenant, template_id, version) REFERENCES template_versions
);

CREATE TABLE lists (
    tenant          text NOT NULL REFERENCES tenants,
    list_id         text NOT NULL,
    name            text NOT NULL DEFAULT '',
    current_version uuid,                  -- the newest ready version
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, list_id)
);
CREATE TABLE list_versions (
    tenant     text NOT NULL,
    version_id uuid NOT NULL,
    list_id    text NOT NULL,
    state      text NOT NULL DEFAULT 'uploading' CHECK (state IN ('uploading', 'ready', 'failed')),
    format     text NOT NULL,
    size       int,
    shards     int,
    page_size  int,
    rejected   int NOT NULL DEFAULT 0,
    reason     text,
    created_at timestamptz NOT NULL DEFAULT now(),
    touched_at timestamptz NOT NULL DEFAULT now(),
    ready_at   timestamptz,
    PRIMARY KEY (tenant, version_id),
    FOREIGN KEY (tenant, list_id) REFERENCES lists
);
CREATE TABLE list_chunks (
    tenant     text NOT NULL,
    version_id uuid NOT NULL,
    chunk      int NOT NULL,
    sha256     bytea NOT NULL,
    first_line int NOT NULL,
    lines      int NOT NULL,
    accepted   int NOT NULL,
    errors     jsonb NOT NULL,             -- [{line, column, code, detail}], the first 100 a chunk
    PRIMARY KEY (tenant, version_id, chunk)
);
-- What has been uploaded and not yet been made ready; emptied by the step to `ready`.
CREATE TABLE list_staging (
    tenant       text NOT NULL,
    version_id   uuid NOT NULL,
    recipient_id text NOT NULL,
    chunk        int NOT NULL,             -- of two lines for one person the later one counts, in whatever order chunks come
    variables    jsonb,
    PRIMARY KEY (tenant, version_id, recipient_id)
);
-- Immutable. (shard, page) is fixed by the step to `ready`; claims use it for ever.
CREATE TABLE list_rows (
    tenant       text NOT NULL,
    version_id   uuid NOT NULL,
    shard        int NOT NULL,
    page         int NOT NULL,
    recipient_id text NOT NULL,
    variables    jsonb,
    PRIMARY KEY (tenant, version_id, shard, page, recipient_id)
);
CREATE INDEX list_rows_by_recipient ON list_rows (person(tenant, recipient_id));
CREATE TABLE list_pages (
    tenant     text NOT NULL,
    version_id uuid NOT NULL,
    shard      int NOT NULL,
    page       int NOT NULL,
    size       int NOT NULL,
    PRIMARY KEY (tenant, version_id, shard, page)
);

-- What we promised. Not partitioned: the derived id has no time in it.
CREATE TABLE accepted (
    tenant          text NOT NULL,
    id              uuid NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    kind            text NOT NULL CHECK (kind IN ('notification', 'passcode', 'reminder', 'campaign')),
    idempotency_key text NOT NULL,
    body_hmac       bytea NOT NULL,
    message_class   text NOT NULL,
    category        text NOT NULL,
    recipient_id    text,
    correlation_id  text,
    parent_id       uuid,
    workflow_input  bytea NOT NULL,        -- sealed; what the workflow is started with, again and again
    content         bytea NOT NULL,        -- sealed; template, variables, secret
    accepted_at     timestamptz NOT NULL,
    due_at          timestamptz,
    expires_at      timestamptz NOT NULL,
    started_at      timestamptz,
    closed_at       timestamptz,
    outcome         jsonb,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX accepted_unstarted ON accepted (accepted_at) WHERE started_at IS NULL AND closed_at IS NULL;
CREATE UNIQUE INDEX accepted_open ON accepted (tenant, id) WHERE closed_at IS NULL;
CREATE INDEX accepted_closed ON accepted (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX accepted_by_recipient ON accepted (person(tenant, recipient_id), accepted_at DESC);
CREATE INDEX accepted_by_correlation ON accepted (correlation_id) WHERE correlation_id IS NOT NULL;

CREATE TABLE passcodes (
    tenant       text NOT NULL,
    id           uuid NOT NULL,
    code_hmac    bytea NOT NULL,           -- keyed: a short code hashed alone is guessed at once
    checks_left  int NOT NULL,
    send_no      int NOT NULL DEFAULT 1,
    resends      jsonb NOT NULL DEFAULT '{}',  -- {key: send number}
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    used_at      timestamptz,
    cancelled_at timestamptz,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX passcodes_by_age ON passcodes (created_at);

CREATE TABLE campaigns (
    tenant           text NOT NULL REFERENCES tenants,
    campaign_id      uuid NOT NULL,
    mode             text NOT NULL,
    name             text NOT NULL DEFAULT '',
    category         text NOT NULL,
    template_id      text NOT NULL,
    template_version int NOT NULL,
    list_id          text NOT NULL,
    version_id       uuid,                 -- pinned by freeze
    spec             jsonb NOT NULL,       -- send_at, window, rate, expiry and so on, as asked
    variables        jsonb NOT NULL DEFAULT '{}',
    phase            text NOT NULL DEFAULT 'accepted',
    reason           text NOT NULL DEFAULT '',
    size             int,
    shards           int,
    page_size        int,
    frozen_at        timestamptz,
    expires_at       timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    closed_at        timestamptz,
    last_send_at     timestamptz,
    PRIMARY KEY (tenant, campaign_id)
);
CREATE TABLE campaign_control (
    tenant      text NOT NULL,
    campaign_id uuid NOT NULL,
    version     bigint NOT NULL,
    state       text NOT NULL CHECK (state IN ('running', 'paused', 'cancelled')),
    rate_per_second double precision,
    reason      text NOT NULL DEFAULT '',
    by          text NOT NULL DEFAULT '',
    at          timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, campaign_id)
);
CREATE INDEX campaign_control_recent ON campaign_control (at);

-- Durable progress of one shard: the page below which everything was planned, or sent on one channel ('' for plan).
CREATE TABLE cursors (
    tenant      text NOT NULL,
    campaign_id uuid NOT NULL,
    shard       int NOT NULL,
    stage       text NOT NULL,             -- 'plan' or a channel
    epoch       bigint NOT NULL DEFAULT 0,
    page        int NOT NULL DEFAULT 0,    -- the next page to work
    closed      boolean NOT NULL DEFAULT false,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, campaign_id, shard, stage)
) WITH (fillfactor = 50);

-- Recomputed from its rows under a lock and overwritten, never incremented.
CREATE TABLE page_summaries (
    tenant      text NOT NULL,
    campaign_id uuid NOT NULL,
    shard       int NOT NULL,
    page        int NOT NULL,
    size        int NOT NULL,
    counts      int[] NOT NULL,            -- by recipient state code, see sendloom/domain/outcomes.py
    PRIMARY KEY (tenant, campaign_id, shard, page)
) WITH (fillfactor = 50);

CREATE TABLE decisions (
    tenant       text NOT NULL,
    frozen_at    timestamptz NOT NULL,
    campaign_id  uuid NOT NULL,
    shard        int NOT NULL,
    page         int NOT NULL,
    recipient_id text NOT NULL,
    state        smallint NOT NULL,        -- code, see recipient_state()
    channel      text,
    rung         smallint NOT NULL DEFAULT 0,
    send_no      smallint NOT NULL DEFAULT 1,
    attempt      smallint NOT NULL DEFAULT 0,
    reason       text,
    not_before   timestamptz,
    not_after    timestamptz,
    due_at       timestamptz,              -- the bucket it waits in
    decided_at   timestamptz NOT NULL DEFAULT now(),
    changed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (campaign_id, shard, page, recipient_id, tenant, frozen_at)
) PARTITION BY RANGE (frozen_at);
CREATE INDEX decisions_by_recipient ON decisions (person(tenant, recipient_id));
-- In the order the due loop works: bucket by bucket, and inside one by (shard, page).
CREATE INDEX decisions_due ON decisions (tenant, campaign_id, channel, due_at, shard, page, recipient_id) WHERE due_at IS NOT NULL;

-- The fixed, sealed payload of one delivery of a single notification. A campaign re-renders from its frozen version.
CREATE TABLE deliveries (
    tenant       text NOT NULL,
    frozen_at    timestamptz NOT NULL,
    campaign_id  uuid NOT NULL,
    recipient_id text NOT NULL,
    channel      text NOT NULL,
    send_no      smallint NOT NULL,
    device       text NOT NULL DEFAULT '',
    address_hash bytea NOT NULL,
    payload      bytea,                    -- sealed Outbound; null once purged
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (campaign_id, recipient_id, channel, send_no, device, tenant, frozen_at)
) PARTITION BY RANGE (frozen_at);

-- The ledger: what we did to a provider, with one column per later status.
CREATE TABLE claims (
    tenant       text NOT NULL,
    frozen_at    timestamptz NOT NULL,
    campaign_id  uuid NOT NULL,
    shard        int NOT NULL,
    page         int NOT NULL,
    channel      text NOT NULL,
    recipient_id text NOT NULL,
    send_no      smallint NOT NULL,
    device       text NOT NULL DEFAULT '',
    state        smallint NOT NULL,        -- rank, see claim_state()
    attempt      smallint NOT NULL,
    owner        uuid NOT NULL,
    lease_until  timestamptz NOT NULL,
    provider     text,
    provider_message_id text,
    code         text,
    claimed_at   timestamptz NOT NULL,
    recorded_at  timestamptz,
    delivered_at timestamptz,
    opened_at    timestamptz,
    bounced_at   timestamptz,
    complained_at timestamptz,
    PRIMARY KEY (campaign_id, shard, page, channel, recipient_id, send_no, device, tenant, frozen_at)
) PARTITION BY RANGE (frozen_at);
-- No index on state or lease: it would make every outcome rewrite every index. Ended leases are found page by page.

CREATE TABLE cap_uses (
    tenant       text NOT NULL,
    recipient_id text NOT NULL,
    scope        text NOT NULL,            -- 'category:…', 'channel:…' or 'marketing'
    local_day    date NOT NULL,
    decision_id  uuid NOT NULL,            -- of the campaign or notification
    PRIMARY KEY (tenant, recipient_id, scope, local_day, decision_id)
);

CREATE TABLE dead_letters (
    tenant       text NOT NULL,
    id           uuid NOT NULL,            -- derived from the decision
    kind         text NOT NULL,
    ref_id       uuid NOT NULL,            -- notification, passcode, reminder or campaign
    campaign_id  uuid NOT NULL,            -- of the decision
    frozen_at    timestamptz NOT NULL,
    shard        int NOT NULL DEFAULT 0,
    page         int NOT NULL DEFAULT 0,
    recipient_id text NOT NULL,
    category     text NOT NULL,
    channel      text,
    state        text NOT NULL,            -- rejected, failed, unknown, undeliverable
    code         text NOT NULL,
    last_error   text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    status       text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'replayed', 'discarded')),
    handled_by   text,
    handled_at   timestamptz,
    replays      int NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX dead_letters_open ON dead_letters (tenant, created_at DESC) WHERE status = 'open';

-- What was fired, when it should have been, who asked. Lives here, not in the scheduler (STORE-5).
CREATE TABLE trigger_log (
    tenant        text NOT NULL,
    trigger_id    uuid NOT NULL,
    scheduled_for timestamptz NOT NULL,
    kind          text NOT NULL,
    fired_at      timestamptz,
    status        text NOT NULL,
    by            text NOT NULL DEFAULT '',
    ref_id        uuid,
    PRIMARY KEY (tenant, trigger_id, scheduled_for)
);

CREATE TABLE audit (
    tenant text NOT NULL,
    id     bigint GENERATED ALWAYS AS IDENTITY,
    at     timestamptz NOT NULL DEFAULT now(),
    actor  text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant, id)
);

-- Whatever was rate limited per address or source, counted in SQL so that losing Redis loses no count.
CREATE TABLE limit_windows (
    tenant  text NOT NULL,
    subject text NOT NULL,                 -- 'verify:<hash>' and so on; never an address
    starts  timestamptz NOT NULL,
    used    int NOT NULL,
    PRIMARY KEY (tenant, subject, starts)
);

CREATE FUNCTION claim_state(rank smallint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT (ARRAY['claimed','failed','unknown','rejected','sent'])[rank + 1] $$;

CREATE FUNCTION recipient_state(code smallint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT (ARRAY['pending','deferred','sent','rejected','failed','unknown','suppressed','expired','cancelled','erased'])[code + 1] $$;

CREATE VIEW readable_claims AS SELECT claim_state(state) AS state_name, * FROM claims;
CREATE VIEW readable_decisions AS SELECT recipient_state(state) AS state_name, * FROM decisions;

-- Recompute the summaries of some pages, each under its lock. One function, because every statement inside it sees what was
-- committed before the lock was got, and the caller pays one round trip.
CREATE FUNCTION summarise_pages(p_tenant text, p_frozen_at timestamptz, p_campaign_id uuid, p_shards int[], p_pages int[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO page_summaries AS s (tenant, campaign_id, shard, page, size, counts)
    SELECT p_tenant, p_campaign_id, u.shard, u.page, l.size, ARRAY[l.size, 0, 0, 0, 0, 0, 0, 0, 0, 0]
      FROM (SELECT DISTINCT shard, page FROM unnest(p_shards, p_pages) AS u (shard, page)) u
      JOIN LATERAL (SELECT l.size FROM campaigns c, list_pages l
                     WHERE c.tenant = p_tenant AND c.campaign_id = p_campaign_id
                       AND l.tenant = p_tenant AND l.version_id = c.version_id AND l.shard = u.shard AND l.page = u.page
                    OFFSET 0) l ON true
     ORDER BY u.shard, u.page
    -- Locks the row, also when it was there already.
    ON CONFLICT (tenant, campaign_id, shard, page) DO UPDATE SET size = s.size;

    -- An upsert again, because it always finds its row by the unique index. A row without a decision is pending.
    INSERT INTO page_summaries AS s (tenant, campaign_id, shard, page, size, counts)
    SELECT p_tenant, p_campaign_id, u.shard, u.page, 0, ARRAY[-n.others, n.c1, n.c2, n.c3, n.c4, n.c5, n.c6, n.c7, n.c8, n.c9]
      FROM (SELECT DISTINCT shard, page FROM unnest(p_shards, p_pages) AS u (shard, page)) u
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE d.state <> 0)::int AS others,
                  count(*) FILTER (WHERE d.state = 1)::int AS c1,
                  count(*) FILTER (WHERE d.state = 2)::int AS c2,
                  count(*) FILTER (WHERE d.state = 3)::int AS c3,
                  count(*) FILTER (WHERE d.state = 4)::int AS c4,
                  count(*) FILTER (WHERE d.state = 5)::int AS c5,
                  count(*) FILTER (WHERE d.state = 6)::int AS c6,
                  count(*) FILTER (WHERE d.state = 7)::int AS c7,
                  count(*) FILTER (WHERE d.state = 8)::int AS c8,
                  count(*) FILTER (WHERE d.state = 9)::int AS c9
             FROM decisions d
            WHERE d.tenant = p_tenant AND d.frozen_at = p_frozen_at AND d.campaign_id = p_campaign_id
              AND d.shard = u.shard AND d.page = u.page) n
      JOIN LATERAL (SELECT FROM page_summaries x WHERE x.tenant = p_tenant AND x.campaign_id = p_campaign_id
                       AND x.shard = u.shard AND x.page = u.page OFFSET 0) there ON true
    ON CONFLICT (tenant, campaign_id, shard, page) DO UPDATE
       SET counts = ARRAY[s.size + excluded.counts[1]] || excluded.counts[2:10];
END $$;

-- Monthly partitions; `sendloom migrate` and housekeeping keep them a year ahead. Nothing ever falls outside: the default
-- partition takes what a wrong clock brings, and doctor reports when it is not empty. A new partition first takes over what
-- the default one holds of its month, then is attached, which unlike CREATE … PARTITION OF does not stop the traffic.
CREATE FUNCTION ensure_partitions(first date, last date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    month date := date_trunc('month', first);
    starts timestamptz;
    ends timestamptz;
    parent text;
    child text;
BEGIN
    WHILE month <= last LOOP
        starts := month::timestamp AT TIME ZONE 'UTC';
        ends := (month + interval '1 month') AT TIME ZONE 'UTC';
        FOREACH parent IN ARRAY ARRAY['decisions', 'deliveries', 'claims'] LOOP
            child := parent || '_' || to_char(month, 'YYYYMM');
            IF to_regclass(child) IS NULL THEN
                -- Every insert is followed by an update. Room for both on one page keeps the update off the indexes (measured: at 60
                -- a third of them were not), and a claim grows by its provider's message id.
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS) WITH (fillfactor = %s)', child, parent,
                               CASE parent WHEN 'claims' THEN 40 WHEN 'decisions' THEN 45 ELSE 100 END);
                EXECUTE format(
                    'WITH moved AS (DELETE FROM %I WHERE frozen_at >= %L AND frozen_at < %L RETURNING *) INSERT INTO %I SELECT * FROM moved',
                    parent || '_default', starts, ends, child);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child, starts, ends);
            END IF;
        END LOOP;
        month := month + interval '1 month';
    END LOOP;
END $$;

CREATE TABLE decisions_default PARTITION OF decisions DEFAULT;
CREATE TABLE deliveries_default PARTITION OF deliveries DEFAULT;
CREATE TABLE claims_default PARTITION OF claims DEFAULT;
