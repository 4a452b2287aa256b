-- fragment: columns
c.tenant, c.campaign_id, c.mode, c.name, c.category, c.template_id, c.template_version, c.list_id, c.version_id, c.spec, c.variables,
       c.phase, c.reason, c.size, c.shards, c.page_size, c.frozen_at, c.expires_at, c.created_at, c.closed_at, c.last_send_at,
       c.created_by, c.approved_by, c.channels

-- name: insert
WITH new AS (
    INSERT INTO campaigns (tenant, campaign_id, mode, name, category, template_id, template_version, list_id, spec, variables, phase, reason,
                           expires_at, created_at, created_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $16)
    ON CONFLICT DO NOTHING
    RETURNING tenant, campaign_id
)
INSERT INTO campaign_control (tenant, campaign_id, version, state, rate_per_second, at)
SELECT tenant, campaign_id, 0, 'running', $15, clock_timestamp() FROM new

-- name: get
SELECT
-- include: columns
  FROM campaigns c WHERE c.tenant = $1 AND c.campaign_id = $2

-- name: recent
SELECT
-- include: columns
  FROM campaigns c WHERE c.tenant = $1 ORDER BY c.created_at DESC, c.campaign_id LIMIT $2

-- name: open_campaigns
SELECT
-- include: columns
  FROM campaigns c WHERE c.closed_at IS NULL AND (c.tenant, c.campaign_id) > ($1, $2) ORDER BY c.tenant, c.campaign_id LIMIT $3

-- name: waiting_after_close
-- Somebody replays them. Older ones have no claims left to be told apart by.
SELECT
-- include: columns
  FROM campaigns c
 WHERE c.closed_at > now() - interval '30 days'
   AND EXISTS (SELECT FROM decisions d WHERE d.tenant = c.tenant AND d.frozen_at = c.frozen_at AND d.campaign_id = c.campaign_id
                  AND d.due_at IS NOT NULL)
 ORDER BY c.closed_at LIMIT $1

-- name: lock
SELECT
-- include: columns
  FROM campaigns c WHERE c.tenant = $1 AND c.campaign_id = $2 FOR UPDATE

-- name: lock_list
-- Nobody makes another version current or withdraws this one while it is being pinned. In a statement of its own: one that
-- waited here would read the new name of a version that its own snapshot does not show as ready yet.
SELECT FROM lists WHERE tenant = $1 AND list_id = $2 FOR SHARE

-- name: audience
SELECT l.current_version, v.size, v.shards, v.page_size,
       n.state AS newest_state, n.reason AS newest_reason
  FROM lists l
  LEFT JOIN list_versions v ON v.tenant = l.tenant AND v.version_id = l.current_version AND v.state = 'ready'
  LEFT JOIN LATERAL (SELECT state, reason FROM list_versions n WHERE n.tenant = l.tenant AND n.list_id = l.list_id
                      ORDER BY created_at DESC LIMIT 1) n ON true
 WHERE l.tenant = $1 AND l.list_id = $2

-- name: pin
UPDATE campaigns c
   SET version_id = $3, size = $4, shards = $5, page_size = $6, frozen_at = $7, channels = $8,
       expires_at = coalesce(c.expires_at, $7::timestamptz + (SELECT g.ttl_seconds * interval '1 second' FROM categories g WHERE g.tenant = $1 AND g.category = c.category))
 WHERE c.tenant = $1 AND c.campaign_id = $2 AND c.version_id IS NULL
RETURNING
-- include: columns

-- name: frozen
SELECT g.message_class, (SELECT count(*) FROM list_pages p WHERE p.tenant = $1 AND p.version_id = $3) AS pages
  FROM categories g WHERE g.tenant = $1 AND g.category = $2

-- name: set_phase
UPDATE campaigns
   SET phase = $3, reason = $4,
       closed_at = CASE WHEN $3 IN ('completed', 'cancelled', 'failed') THEN coalesce(closed_at, now()) END
-- The end stays: a phase that was being shown may arrive after it.
 WHERE tenant = $1 AND campaign_id = $2 AND (closed_at IS NULL OR phase = $3)

-- name: approve
UPDATE campaigns
   SET approved_by = $3, approved_at = now()
 WHERE tenant = $1 AND campaign_id = $2 AND phase = 'awaiting_approval' AND approved_by IS NULL AND created_by <> $3
   -- Its workflow shows the end of it a moment later.
   AND NOT EXISTS (SELECT FROM campaign_control o WHERE o.tenant = $1 AND o.campaign_id = $2 AND o.state = 'cancelled')

-- name: health
SELECT (SELECT count(*) FROM claims k
         WHERE k.campaign_id = $2 AND k.tenant = $1 AND k.frozen_at = $3 AND k.bounced_at IS NOT NULL) AS bounced,
       (SELECT count(*) FROM claims k
         WHERE k.campaign_id = $2 AND k.tenant = $1 AND k.frozen_at = $3 AND k.complained_at IS NOT NULL) AS complained,
       c.guarded, o.at
  FROM campaigns c JOIN campaign_control o ON o.tenant = c.tenant AND o.campaign_id = c.campaign_id
 WHERE c.tenant = $1 AND c.campaign_id = $2

-- name: seen
-- The half of `health` that is not in the ledger.
SELECT c.guarded, o.at
  FROM campaigns c JOIN campaign_control o ON o.tenant = c.tenant AND o.campaign_id = c.campaign_id
 WHERE c.tenant = $1 AND c.campaign_id = $2

-- name: note_seen
UPDATE campaigns SET guarded = $3 WHERE tenant = $1 AND campaign_id = $2

-- name: sent_now
UPDATE campaigns SET last_send_at = now() WHERE tenant = $1 AND campaign_id = $2

-- name: list_failure
-- A pinned list that failed later stops its campaign (CAMP-2).
SELECT v.reason FROM campaigns c
  JOIN list_versions v ON v.tenant = c.tenant AND v.version_id = c.version_id
 WHERE c.tenant = $1 AND c.campaign_id = $2 AND v.state = 'failed'

-- name: control
SELECT version, state, rate_per_second, reason, by FROM campaign_control WHERE tenant = $1 AND campaign_id = $2

-- name: set_control
-- One statement, so versions never repeat; cancelled is the end.
UPDATE campaign_control
   SET version = version + 1, state = coalesce($3, state), rate_per_second = coalesce($4, rate_per_second), reason = $5, by = $6,
       at = clock_timestamp()
 WHERE tenant = $1 AND campaign_id = $2 AND state <> 'cancelled'
RETURNING version, state, rate_per_second, reason, by

-- name: controls_since
SELECT tenant, campaign_id, version, state, rate_per_second, reason, by FROM campaign_control WHERE at >= $1 ORDER BY at

-- name: take_epoch
INSERT INTO cursors AS k (tenant, campaign_id, shard, stage, epoch) VALUES ($1, $2, $3, $4, 1)
ON CONFLICT (tenant, campaign_id, shard, stage) DO UPDATE SET epoch = k.epoch + 1, updated_at = now()
RETURNING epoch

-- name: cursor
SELECT page, closed FROM cursors WHERE tenant = $1 AND campaign_id = $2 AND shard = $3 AND stage = $4

-- name: advance
UPDATE cursors SET page = greatest(page, $6), closed = closed OR $7, updated_at = now()
 WHERE tenant = $1 AND campaign_id = $2 AND shard = $3 AND stage = $4 AND epoch = $5

-- name: pages
SELECT page, size FROM list_pages WHERE tenant = $1 AND version_id = $2 AND shard = $3 ORDER BY page

-- fragment: sends
-- What the sends of `d.ids` need, as things are now: this is the last look. $1 tenant, $2 category, $3 channel, $4 list version.
-- Ids of many rows come as one text, as they go (`pool.joined`), variables as one JSON array, and what mostly is the same for all,
-- or nothing, comes once or not at all: of an array both the server and the driver look at every element.
array_to_string(d.ids, E'\x1f') AS ids, d.attempts, d.send_nos, d.reasons, d.not_before, d.not_befores, d.not_after, d.not_afters,
l.*, r.*, a.*, s.*, p.*
  FROM d
 CROSS JOIN LATERAL (SELECT string_agg(recipient_id, E'\x1f') AS l_ids, '[' || string_agg(variables::text, ',') || ']' AS l_variables
                       FROM list_rows
                      WHERE tenant = $1 AND version_id = $4 AND shard = ANY (d.shards) AND page = ANY (d.pages)
                        AND recipient_id = ANY (d.ids) AND variables IS NOT NULL) l
 CROSS JOIN LATERAL (SELECT string_agg(recipient_id, E'\x1f') AS r_ids,
                            string_agg(coalesce(locale, '') || E'\x1e' || coalesce(zone, ''), E'\x1f') AS r_places
                       FROM recipients WHERE tenant = $1 AND recipient_id = ANY (d.ids) AND erased_at IS NULL) r
 CROSS JOIN LATERAL (SELECT string_agg(recipient_id, E'\x1f') AS a_ids, array_agg(address_hash) AS a_hashes, array_agg(sealed) AS a_sealed,
                            bool_and(verified_at IS NOT NULL) AS a_verified,
                            CASE WHEN bool_or(verified_at IS NOT NULL) <> bool_and(verified_at IS NOT NULL)
                                 THEN array_agg(verified_at IS NOT NULL) END AS a_verifieds,
                            CASE WHEN count(dead_reason) > 0 THEN array_agg(dead_reason) END AS a_dead
                       FROM addresses WHERE tenant = $1 AND recipient_id = ANY (d.ids) AND channel = $3) a
 CROSS JOIN LATERAL (SELECT array_agg(address_hash) AS s_hashes, array_agg(reason) AS s_reasons
                       FROM suppressions WHERE tenant = $1 AND channel = $3 AND address_hash = ANY (a.a_hashes)) s
 CROSS JOIN LATERAL (SELECT array_agg(recipient_id) AS p_ids
                       FROM preferences
                      WHERE tenant = $1 AND recipient_id = ANY (d.ids) AND opted_out AND channel IN ($3, '*')
                        AND (category = $2 OR (category = '*' AND (
                             SELECT message_class = 'marketing' FROM categories WHERE tenant = $1 AND category = $2)))) p
 WHERE d.ids IS NOT NULL

-- fragment: gathered
array_agg(recipient_id) AS ids,
CASE WHEN max(attempt) > 0 THEN array_agg(attempt) END AS attempts,
CASE WHEN max(send_no) > 1 THEN array_agg(send_no) END AS send_nos,
CASE WHEN count(reason) > 0 THEN array_agg(reason) END AS reasons,
min(not_before) AS not_before,
CASE WHEN count(not_before) < count(*) AND count(not_before) > 0 OR min(not_before) < max(not_before) THEN array_agg(not_before) END AS not_befores,
min(not_after) AS not_after,
CASE WHEN count(not_after) < count(*) AND count(not_after) > 0 OR min(not_after) < max(not_after) THEN array_agg(not_after) END AS not_afters

-- name: page_sends
WITH d AS MATERIALIZED (
SELECT ARRAY[$7::int] AS shards, ARRAY[$8::int] AS pages,
-- include: gathered
  FROM (SELECT * FROM decisions
         WHERE tenant = $1 AND frozen_at = $5 AND campaign_id = $6 AND shard = $7 AND page = $8
           AND channel = $3 AND state = 0 AND due_at IS NULL
         ORDER BY recipient_id) d
)
SELECT
-- include: sends

-- name: due_sends
-- Bucket by bucket, inside one in (shard, page) order: as the index has them.
WITH d AS MATERIALIZED (
SELECT array_agg(shard) AS shards, array_agg(page) AS pages, array_agg(state) AS states,
-- include: gathered
  FROM (SELECT * FROM (SELECT * FROM decisions
                        WHERE tenant = $1 AND campaign_id = $6 AND frozen_at = $5 AND channel = $3 AND due_at <= $7 AND due_at IS NOT NULL
                          AND state IN (0, 1)
                        ORDER BY due_at, shard, page, recipient_id LIMIT $8) d
         ORDER BY shard, page, recipient_id) d
)
SELECT d.shards, d.pages, d.states,
-- include: sends

-- name: undefer
-- The rows are there, so the insert never inserts: an upsert finds each by the unique index, whatever the statistics say.
INSERT INTO decisions AS d (tenant, frozen_at, campaign_id, shard, page, recipient_id, state)
SELECT $1, $2::timestamptz, $3, u.shard, u.page, u.recipient_id, 0
  FROM unnest($4::int[], $5::int[], $6::text[]) AS u (shard, page, recipient_id)
ON CONFLICT (tenant, frozen_at, campaign_id, shard, page, recipient_id) DO UPDATE SET state = 0, changed_at = now()
 WHERE d.state = 1

-- name: due
SELECT min(due_at) AS earliest, count(*) AS waiting,
       coalesce((SELECT closed_at IS NOT NULL FROM campaigns WHERE tenant = $1 AND campaign_id = $2), false) AS closed
  FROM decisions
 WHERE tenant = $1 AND campaign_id = $2 AND due_at IS NOT NULL AND state IN (0, 1)
   AND frozen_at = (SELECT frozen_at FROM campaigns WHERE tenant = $1 AND campaign_id = $2)

-- name: summarise
SELECT summarise_pages($1, $2, $3, $4::int[], $5::int[])

-- name: counts
-- A page without a summary has not been worked: it is pending, whole.
SELECT c.size, coalesce(sum(s.size), 0)::int AS summed,
       ARRAY[coalesce(sum(s.counts[1]), 0), coalesce(sum(s.counts[2]), 0), coalesce(sum(s.counts[3]), 0), coalesce(sum(s.counts[4]), 0),
             coalesce(sum(s.counts[5]), 0), coalesce(sum(s.counts[6]), 0), coalesce(sum(s.counts[7]), 0), coalesce(sum(s.counts[8]), 0),
             coalesce(sum(s.counts[9]), 0), coalesce(sum(s.counts[10]), 0)]::int[] AS counts
  FROM campaigns c LEFT JOIN page_summaries s ON s.tenant = c.tenant AND s.campaign_id = c.campaign_id
 WHERE c.tenant = $1 AND c.campaign_id = $2
 GROUP BY c.size

-- name: reasons
SELECT coalesce(reason, '') AS reason, count(*)::int AS n FROM decisions
 WHERE tenant = $1 AND frozen_at = $2 AND campaign_id = $3 AND state NOT IN (0, 2)
 GROUP BY 1 ORDER BY 2 DESC, 1

-- name: group
SELECT d.tenant, d.frozen_at, d.campaign_id, d.shard, d.page, d.recipient_id, d.state, d.channel, d.rung, d.send_no, d.attempt, d.reason,
       d.not_before, d.not_after, d.due_at
  FROM decisions d
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.state = $4 AND ($5::text IS NULL OR d.reason = $5)
   AND (d.shard, d.page, d.recipient_id) > ($6, $7, $8)
 ORDER BY d.shard, d.page, d.recipient_id LIMIT $9

-- name: pending_group
-- Members that have no decision yet are pending all the same.
SELECT l.tenant, $2::timestamptz AS frozen_at, $3::uuid AS campaign_id, l.shard, l.page, l.recipient_id, 0 AS state, d.channel,
       coalesce(d.rung, 0) AS rung, coalesce(d.send_no, 1) AS send_no, coalesce(d.attempt, 0) AS attempt, d.reason,
       d.not_before, d.not_after, d.due_at
  FROM list_rows l
  LEFT JOIN LATERAL (SELECT * FROM decisions x WHERE x.tenant = $1 AND x.frozen_at = $2 AND x.campaign_id = $3 AND x.shard = l.shard
                        AND x.page = l.page AND x.recipient_id = l.recipient_id OFFSET 0) d ON true
 WHERE l.tenant = $1 AND l.version_id = $4 AND (d.recipient_id IS NULL OR d.state = 0)
   AND (l.shard, l.page, l.recipient_id) > ($5, $6, $7)
 ORDER BY l.shard, l.page, l.recipient_id LIMIT $8

-- name: place_of
SELECT shard, page FROM (SELECT * FROM list_rows WHERE person(tenant, recipient_id) = person($1, $2) OFFSET 0) l WHERE version_id = $3

-- name: open_sends
-- Pending rows of some shards that a claim may exist for: behind the channel's cursor, or with a bucket that has come.
SELECT d.shard, d.page, d.channel, d.recipient_id, d.send_no, d.attempt, d.due_at,
       coalesce(k.closed OR d.page < k.page, false) AS behind
  FROM decisions d
  LEFT JOIN cursors k ON k.tenant = $1 AND k.campaign_id = $3 AND k.shard = d.shard AND k.stage = d.channel
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard >= $4 AND d.shard < $5
   AND d.state = 0 AND d.channel IS NOT NULL AND (d.due_at IS NULL OR d.due_at <= now())
 ORDER BY d.shard, d.page, d.channel, d.recipient_id

-- name: stale_pages
-- Pages some pass has been over, whose summary is not there or says that rows are open: a sender may have gone between its
-- rows and the summary. Once nothing is open, nothing but a late record changes a page, and that recomputes it.
SELECT l.shard, l.page FROM list_pages l
 CROSS JOIN LATERAL (SELECT max(k.page) AS page, bool_or(k.closed) AS closed FROM cursors k
                      WHERE k.tenant = $1 AND k.campaign_id = $3 AND k.shard = l.shard OFFSET 0) k
  LEFT JOIN LATERAL (SELECT s.counts FROM page_summaries s
                      WHERE s.tenant = $1 AND s.campaign_id = $3 AND s.shard = l.shard AND s.page = l.page OFFSET 0) s ON true
 WHERE l.tenant = $1 AND l.version_id = $2 AND l.shard >= $4 AND l.shard < $5 AND (k.closed OR l.page < k.page)
   AND (s.counts IS NULL OR s.counts[1] + s.counts[2] > 0)

-- name: bucket
-- As `undefer`: the rows are there.
INSERT INTO decisions AS d (tenant, frozen_at, campaign_id, shard, page, recipient_id, state, due_at, attempt)
SELECT $1, $2::timestamptz, $3, u.shard, u.page, u.recipient_id, 0, $4, u.attempt
  FROM unnest($5::int[], $6::int[], $7::text[], $8::smallint[]) AS u (shard, page, recipient_id, attempt)
ON CONFLICT (tenant, frozen_at, campaign_id, shard, page, recipient_id) DO UPDATE
   SET due_at = excluded.due_at, attempt = greatest(d.attempt, excluded.attempt), changed_at = now()
 WHERE d.state = 0 AND d.due_at IS NULL

-- name: cancel_rows
-- With or without a decision. $8: those that may be with a provider at this moment.
INSERT INTO decisions AS d (tenant, frozen_at, campaign_id, shard, page, recipient_id, state, reason)
SELECT $1, $2::timestamptz, $3, l.shard, l.page, l.recipient_id, 8, $5
  FROM list_rows l
 WHERE l.tenant = $1 AND l.version_id = $4 AND l.shard = $6 AND l.page = ANY ($7::int[]) AND l.recipient_id <> ALL ($8::text[])
 ORDER BY l.shard, l.page, l.recipient_id
ON CONFLICT (tenant, frozen_at, campaign_id, shard, page, recipient_id) DO UPDATE
   SET state = 8, reason = excluded.reason, due_at = NULL, changed_at = now()
 WHERE d.state IN (0, 1)

-- name: give_back_caps
-- Of everybody of these pages who is not sent to.
DELETE FROM cap_uses u
 WHERE u.tenant = $1 AND u.decision_id = $3
   AND u.recipient_id = ANY (ARRAY(SELECT d.recipient_id FROM decisions d
                                    WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard = $4
                                      AND d.page = ANY ($5::int[]) AND d.state = 8))

-- name: shard_pages
SELECT shard, array_agg(page ORDER BY page) AS pages FROM list_pages
 WHERE tenant = $1 AND version_id = $2 AND ($3::int IS NULL OR shard = $3) GROUP BY shard ORDER BY shard

-- name: pending_of_pages
SELECT d.page, d.channel, d.recipient_id, d.send_no, d.attempt FROM decisions d
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard = $4 AND d.page = ANY ($5::int[]) AND d.state = 0
   AND d.channel IS NOT NULL
 ORDER BY d.page, d.channel, d.recipient_id

-- name: replay
-- A rejected one is asked again as a new send: its old claim is final.
UPDATE decisions d
   SET state = 0, due_at = $5, reason = $8, changed_at = now(),
       send_no = CASE WHEN d.state = 3 THEN d.send_no + 1 ELSE d.send_no END,
       attempt = CASE WHEN d.state = 3 THEN 0 ELSE d.attempt END
 WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.state = ANY ($4::smallint[]) AND d.shard >= $6 AND d.shard < $7
   AND d.channel IS NOT NULL
RETURNING d.shard, d.page, d.recipient_id
