-- name: add
INSERT INTO audit (tenant, actor, action, target, detail) VALUES ($1, $2, $3, $4, $5)

-- name: recent
SELECT id, at, actor, action, target, detail FROM audit
 WHERE tenant = $1 AND ($3::bigint IS NULL OR id < $3) AND ($4::text IS NULL OR target = $4) ORDER BY id DESC LIMIT $2

-- name: fired
-- A fire is (trigger, scheduled time): the second one changes nothing. True for the one that may go on.
INSERT INTO trigger_log (tenant, trigger_id, scheduled_for, kind, fired_at, status, by, ref_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING
RETURNING true

-- name: triggered
UPDATE trigger_log SET status = $4, fired_at = coalesce(fired_at, $5), ref_id = coalesce($6, ref_id)
 WHERE tenant = $1 AND trigger_id = $2 AND scheduled_for = $3

-- name: between
-- A line that stands for many runs is there when its stretch meets ours.
SELECT trigger_id, scheduled_for, kind, status, by, fired_at, ref_id, missed, missed_until, reason FROM trigger_log
 WHERE tenant = $1 AND (scheduled_for >= $2 OR missed_until >= $2) AND scheduled_for < $3 ORDER BY scheduled_for, trigger_id LIMIT $4

-- name: of_trigger
SELECT trigger_id, scheduled_for, kind, status, by, fired_at, ref_id, missed, missed_until, reason FROM trigger_log
 WHERE tenant = $1 AND trigger_id = $2 AND ($4::timestamptz IS NULL OR scheduled_for < $4) ORDER BY scheduled_for DESC LIMIT $3
