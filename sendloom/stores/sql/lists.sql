-- name: create
INSERT INTO lists AS l (tenant, list_id, name) VALUES ($1, $2, $3)
ON CONFLICT (tenant, list_id) DO UPDATE SET name = CASE WHEN excluded.name = '' THEN l.name ELSE excluded.name END

-- name: get
SELECT list_id, name, current_version, created_at FROM lists WHERE tenant = $1 AND list_id = $2

-- name: lists
SELECT list_id, name, current_version, created_at FROM lists WHERE tenant = $1 ORDER BY list_id

-- name: start
INSERT INTO list_versions (tenant, version_id, list_id, format)
SELECT $1, $2, l.list_id, $4 FROM lists l WHERE l.tenant = $1 AND l.list_id = $3
ON CONFLICT DO NOTHING

-- fragment: version
tenant, list_id, version_id, state, format, size, rejected, reason, created_at

-- name: version
SELECT
-- include: version
  FROM list_versions WHERE tenant = $1 AND version_id = $2

-- name: versions
SELECT
-- include: version
  FROM list_versions WHERE tenant = $1 AND list_id = $2 ORDER BY created_at DESC, version_id

-- name: share_version
-- Chunks of one version may come side by side, but none beside the step to ready.
SELECT state FROM list_versions WHERE tenant = $1 AND version_id = $2 FOR KEY SHARE

-- name: lock_version
SELECT state, list_id FROM list_versions WHERE tenant = $1 AND version_id = $2 FOR UPDATE

-- name: touch
UPDATE list_versions SET touched_at = now() WHERE tenant = $1 AND version_id = $2 AND touched_at < now() - interval '30 seconds'

-- name: add_chunk
INSERT INTO list_chunks (tenant, version_id, chunk, sha256, first_line, lines, accepted, errors) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING
RETURNING true

-- name: chunk
SELECT chunk, sha256, first_line, lines, accepted, errors FROM list_chunks WHERE tenant = $1 AND version_id = $2 AND chunk = $3

-- name: chunks
SELECT chunk, sha256, first_line, lines, accepted, errors FROM list_chunks WHERE tenant = $1 AND version_id = $2 ORDER BY chunk

-- name: stage
-- The same person on two lines is one row; the later line counts, also when its chunk came first.
INSERT INTO list_staging AS s (tenant, version_id, recipient_id, chunk, variables)
SELECT $1, $2, n.recipient_id, $3, n.variables FROM unnest($4::text[], $5::jsonb[]) AS n (recipient_id, variables)
ON CONFLICT (tenant, version_id, recipient_id) DO UPDATE SET variables = excluded.variables, chunk = excluded.chunk
 WHERE excluded.chunk > s.chunk

-- name: stage_sent
-- Who got a campaign (state $5), with the values of the list it went to.
INSERT INTO list_staging (tenant, version_id, recipient_id, chunk, variables)
SELECT d.tenant, $2, d.recipient_id, 0, r.variables
  FROM decisions d
  JOIN list_rows r ON r.tenant = d.tenant AND r.version_id = $6 AND r.shard = d.shard AND r.page = d.page AND r.recipient_id = d.recipient_id
 WHERE d.tenant = $1 AND d.frozen_at = $3 AND d.campaign_id = $4 AND d.state = $5 AND d.shard BETWEEN $7 AND $8
ON CONFLICT DO NOTHING

-- name: lock_scan
SELECT state, scanned_to, scanned_all FROM list_versions WHERE tenant = $1 AND version_id = $2 FOR UPDATE

-- name: stage_segment
-- Of the next $4 recipients in key order, those who are in the segment. One who is staged already was so by this version's scan.
WITH scanned AS MATERIALIZED (
    SELECT recipient_id, locale, zone, attributes, erased_at FROM recipients
     WHERE tenant = $1 AND recipient_id > $3 ORDER BY recipient_id LIMIT $4),
members AS (
    INSERT INTO list_staging (tenant, version_id, recipient_id, chunk, variables)
    SELECT $1, $2, r.recipient_id, 0, NULL FROM scanned r WHERE r.erased_at IS NULL AND true /* the segment */
    ON CONFLICT DO NOTHING)
SELECT max(recipient_id) AS last, count(*) AS scanned FROM scanned

-- name: scanned
UPDATE list_versions SET scanned_to = coalesce($3, scanned_to), scanned_all = $4, touched_at = now() WHERE tenant = $1 AND version_id = $2

-- name: begin_again
-- What was staged went when it was given up.
UPDATE list_versions SET state = 'uploading', reason = NULL, size = NULL, scanned_to = '', scanned_all = false, touched_at = now()
 WHERE tenant = $1 AND version_id = $2 AND state = 'failed' AND reason = $3

-- name: staged
SELECT count(*) FROM list_staging WHERE tenant = $1 AND version_id = $2

-- name: place
-- One ordered pass gives every row its place for ever: $3 rows a page, $4 pages a shard.
INSERT INTO list_rows (tenant, version_id, shard, page, recipient_id, variables)
SELECT $1, $2, (n.page / $4)::int, (n.page % $4)::int, n.recipient_id, n.variables
  FROM (SELECT recipient_id, variables, (row_number() OVER (ORDER BY recipient_id) - 1) / $3::int AS page
          FROM list_staging WHERE tenant = $1 AND version_id = $2) n

-- name: place_pages
INSERT INTO list_pages (tenant, version_id, shard, page, size)
SELECT $1, $2, (n / $4)::int, (n % $4)::int, least($3::int, $5::int - n * $3::int) FROM generate_series(0, ($5::int - 1) / $3::int) AS n

-- name: unstage
DELETE FROM list_staging WHERE tenant = $1 AND version_id = $2

-- name: ready
UPDATE list_versions
   SET state = 'ready', size = $3, shards = $4, page_size = $5, ready_at = now(), touched_at = now(),
       rejected = (SELECT coalesce(sum(lines - accepted), 0) FROM list_chunks WHERE tenant = $1 AND version_id = $2)
 WHERE tenant = $1 AND version_id = $2

-- name: lock_list
-- In a statement of its own, before what follows compares versions: one that waited here would compare with those it saw before.
SELECT FROM lists WHERE tenant = $1 AND list_id = $2 FOR NO KEY UPDATE

-- name: make_current
-- The newest upload that is ready, whatever order they became so in.
UPDATE lists l SET current_version = $3
 WHERE l.tenant = $1 AND l.list_id = $2
   AND NOT EXISTS (SELECT FROM list_versions c JOIN list_versions n ON n.tenant = c.tenant
                    WHERE c.tenant = $1 AND c.version_id = l.current_version AND n.version_id = $3 AND c.created_at > n.created_at)

-- name: fail
UPDATE list_versions SET state = 'failed', reason = $3, size = coalesce(size, 0) WHERE tenant = $1 AND version_id = $2 AND state = 'uploading'

-- name: unset_current
-- A list that turns out bad is not sent to again; a version before it may still be.
UPDATE lists l SET current_version = (
    SELECT v.version_id FROM list_versions v
     WHERE v.tenant = $1 AND v.list_id = l.list_id AND v.state = 'ready' ORDER BY v.created_at DESC LIMIT 1)
 WHERE l.tenant = $1 AND l.current_version = $2

-- name: withdraw
UPDATE list_versions SET state = 'failed', reason = $3 WHERE tenant = $1 AND version_id = $2 AND state <> 'failed' RETURNING list_id

-- name: abandoned
SELECT tenant, version_id FROM list_versions WHERE state = 'uploading' AND touched_at < now() - $1::interval ORDER BY touched_at LIMIT $2

-- name: rows
SELECT shard, page, recipient_id FROM list_rows
 WHERE tenant = $1 AND version_id = $2 AND (shard, page, recipient_id) > ($3, $4, $5) ORDER BY shard, page, recipient_id LIMIT $6
