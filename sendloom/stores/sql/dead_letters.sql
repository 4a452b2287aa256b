-- fragment: columns
tenant, id, kind, ref_id, campaign_id, frozen_at, shard, page, recipient_id, category, channel, state, code, last_error, created_at, status, replays

-- name: add
INSERT INTO dead_letters AS d (tenant, id, kind, ref_id, campaign_id, frozen_at, shard, page, recipient_id, category, channel, state, code, last_error)
SELECT n.tenant, n.id, n.kind, n.ref_id, n.campaign_id, n.frozen_at, n.shard, n.page, n.recipient_id, n.category, n.channel, n.state, n.code, n.last_error
  FROM unnest($1::text[], $2::uuid[], $3::text[], $4::uuid[], $5::uuid[], $6::timestamptz[], $7::int[], $8::int[], $9::text[], $10::text[],
              $11::text[], $12::text[], $13::text[], $14::text[])
    AS n (tenant, id, kind, ref_id, campaign_id, frozen_at, shard, page, recipient_id, category, channel, state, code, last_error)
ON CONFLICT (tenant, id) DO UPDATE
   SET channel = excluded.channel, state = excluded.state, code = excluded.code, last_error = excluded.last_error,
       status = 'open', handled_by = NULL, handled_at = NULL

-- name: by_status
SELECT
-- include: columns
  FROM dead_letters d
 WHERE tenant = $1 AND status = $2
   AND ($4::uuid IS NULL OR (created_at, id) < (SELECT a.created_at, a.id FROM dead_letters a WHERE a.tenant = $1 AND a.id = $4))
 ORDER BY created_at DESC, id DESC LIMIT $3

-- name: get
SELECT
-- include: columns
  FROM dead_letters WHERE tenant = $1 AND id = $2

-- name: resolve
UPDATE dead_letters SET status = $3, handled_by = $4, handled_at = now(), replays = replays + (CASE WHEN $3 = 'replayed' THEN 1 ELSE 0 END)
 WHERE tenant = $1 AND id = $2 AND status = 'open'

-- name: resolve_many
UPDATE dead_letters SET status = 'replayed', handled_by = $3, handled_at = now(), replays = replays + 1
 WHERE tenant = $1 AND id = ANY ($2::uuid[]) AND status = 'open'
