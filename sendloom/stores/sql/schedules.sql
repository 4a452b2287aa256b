-- fragment: columns
tenant, schedule_id, mode, kind, body_hmac, name, category, recipient_id, content, cron, every_seconds, zone, overlap, catch_up,
       catch_up_seconds, catch_up_max, jitter_seconds, state, version, applied_version, handled_until, next_at, created_by, created_at

-- name: insert
INSERT INTO schedules (tenant, schedule_id, mode, kind, body_hmac, name, category, recipient_id, content, cron, every_seconds, zone,
                       overlap, catch_up, catch_up_seconds, catch_up_max, jitter_seconds, state, handled_until, next_at, created_by, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
ON CONFLICT (tenant, schedule_id) DO NOTHING
RETURNING true

-- name: get
SELECT
-- include: columns
  FROM schedules WHERE tenant = $1 AND schedule_id = $2

-- name: of_tenant
SELECT
-- include: columns
  FROM schedules WHERE tenant = $1 AND schedule_id > $2 AND state <> 'deleted' ORDER BY schedule_id LIMIT $3

-- name: replace
-- Who judged meanwhile has not changed the version, and is not undone.
UPDATE schedules SET kind = $4, body_hmac = $5, name = $6, category = $7, recipient_id = $8, content = $9, cron = $10, every_seconds = $11,
       zone = $12, overlap = $13, catch_up = $14, catch_up_seconds = $15, catch_up_max = $16, jitter_seconds = $17, state = $18,
       handled_until = greatest(handled_until, $19), next_at = $20, version = version + 1, updated_at = now()
 WHERE tenant = $1 AND schedule_id = $2 AND version = $3
RETURNING
-- include: columns

-- name: applied
UPDATE schedules SET applied_version = greatest(applied_version, $3) WHERE tenant = $1 AND schedule_id = $2

-- name: judge
-- Handled and written down are one fact: neither is there without the other.
WITH moved AS (
    UPDATE schedules SET handled_until = $5, next_at = $6
     WHERE tenant = $1 AND schedule_id = $2 AND version = $3 AND handled_until = $4 AND state = 'active'
    RETURNING tenant, schedule_id, kind
), written AS (
    INSERT INTO trigger_log (tenant, trigger_id, scheduled_for, kind, status, by, missed, missed_until)
    SELECT m.tenant, m.schedule_id, f.scheduled_for, m.kind, f.status, f.by, f.missed, f.missed_until
      FROM moved m, unnest($7::timestamptz[], $8::text[], $9::text[], $10::int[], $11::timestamptz[])
           AS f (scheduled_for, status, by, missed, missed_until)
    ON CONFLICT DO NOTHING
)
SELECT count(*) > 0 FROM moved

-- name: owed
SELECT scheduled_for FROM trigger_log WHERE tenant = $1 AND trigger_id = $2 AND status = 'owed' ORDER BY scheduled_for

-- name: settle
-- What turns out to have been fired was fired, also when somebody gave it up at the same time.
UPDATE trigger_log SET status = $4, ref_id = $5, reason = $6, fired_at = CASE WHEN $4 = 'fired' THEN now() END,
       missed = CASE WHEN $4 = 'missed' THEN 1 ELSE 0 END
 WHERE tenant = $1 AND trigger_id = $2 AND scheduled_for = $3
   AND (status = 'owed' OR ($4 = 'fired' AND status = 'missed' AND missed_until IS NULL))

-- name: last_fired
SELECT ref_id FROM trigger_log
 WHERE tenant = $1 AND trigger_id = $2 AND scheduled_for < $3 AND status = 'fired' AND ref_id IS NOT NULL
 ORDER BY scheduled_for DESC LIMIT 1

-- name: overdue
(SELECT tenant, schedule_id FROM schedules
  WHERE state = 'active' AND next_at < now() - $1::interval AND next_at + make_interval(secs => jitter_seconds) < now() - $1::interval
  ORDER BY next_at LIMIT $2)
UNION
(SELECT tenant, trigger_id FROM trigger_log WHERE status = 'owed' AND scheduled_for < now() - $1::interval ORDER BY scheduled_for LIMIT $2)

-- name: unapplied
SELECT
-- include: columns
  FROM schedules WHERE applied_version <> version AND updated_at < now() - $1::interval ORDER BY updated_at LIMIT $2

-- name: everywhere
SELECT
-- include: columns
  FROM schedules WHERE (tenant, schedule_id) > ($1, $2) AND state <> 'deleted' ORDER BY tenant, schedule_id LIMIT $3

-- fragment: series_columns
tenant, series_id, mode, body_hmac, category, recipient_id, correlation_id, event_at, event_local, content, state, version, created_at

-- name: insert_series
INSERT INTO reminder_series (tenant, series_id, mode, body_hmac, category, recipient_id, correlation_id, event_at, event_local, content,
                             state, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (tenant, series_id) DO NOTHING
RETURNING true

-- name: get_series
SELECT
-- include: series_columns
  FROM reminder_series WHERE tenant = $1 AND series_id = $2

-- name: replace_series
UPDATE reminder_series SET event_at = $4, event_local = $5, content = $6, state = $7, version = version + 1, updated_at = now()
 WHERE tenant = $1 AND series_id = $2 AND version = $3
RETURNING
-- include: series_columns
