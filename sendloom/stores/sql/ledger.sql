-- fragment: fence
-- The row lock makes a taker of the next epoch wait for us, and us for it: nobody wins anything under an epoch that is over.
WITH fence AS (
    SELECT epoch FROM cursors
     WHERE tenant = $1 AND campaign_id = $3 AND shard = $4 AND stage = $6 AND $7::bigint IS NOT NULL
       FOR SHARE
)

-- fragment: insert
INSERT INTO claims AS c (tenant, frozen_at, campaign_id, shard, page, channel, recipient_id, send_no, device,
                         state, attempt, owner, lease_until, claimed_at)
SELECT $1, $2::timestamptz, $3, $4, $5, $6, w.recipient_id, coalesce(w.send_no, 1), coalesce(w.device, ''), 0, coalesce(w.attempt, 1),
       $8, now() + $9::interval, now()
  FROM unnest(string_to_array($10, E'\x1f'), $11::smallint[], $12::text[], $13::smallint[]) AS w (recipient_id, send_no, device, attempt)
 WHERE $7::bigint IS NULL OR (SELECT epoch FROM fence) = $7

-- name: claim_all
-- All or nothing: one that has a claim already fails the statement. An insert without ON CONFLICT costs half of one with it,
-- and a chunk of a campaign nearly always is new from end to end.
-- include: fence
, won AS (
-- include: insert
RETURNING lease_until
)
SELECT count(*) AS won, min(lease_until) AS lease_until, NULL::record[] AS which FROM won

-- name: claim_new
-- What has a claim already is left alone, unlocked. When all is won, as nearly always, one row says so.
-- include: fence
, won AS (
-- include: insert
ON CONFLICT DO NOTHING
RETURNING recipient_id, send_no, device, lease_until
)
SELECT count(*) AS won, min(lease_until) AS lease_until,
       CASE WHEN count(*) < cardinality(string_to_array($10, E'\x1f')) THEN array_agg((recipient_id, send_no, device)) END AS which
  FROM won

-- name: claim_again
-- In the same statement that finds it: the attempt after failed(n) ($14) or unknown(n) ($15), and our own claim whose reply
-- was lost, with a new lease.
-- include: fence
-- include: insert
ON CONFLICT (tenant, frozen_at, campaign_id, shard, page, channel, recipient_id, send_no, device) DO UPDATE
   SET state = 0, attempt = excluded.attempt, owner = excluded.owner, lease_until = excluded.lease_until,
       claimed_at = excluded.claimed_at, provider = NULL, provider_message_id = NULL, code = NULL, recorded_at = NULL
 WHERE (c.state = 0 AND c.owner = excluded.owner AND c.attempt = excluded.attempt)
    OR (c.attempt = excluded.attempt - 1 AND ((c.state = 1 AND $14::boolean) OR (c.state = 2 AND $15::boolean)))
RETURNING recipient_id, send_no, device, attempt, lease_until

-- name: epoch
SELECT epoch FROM cursors WHERE tenant = $1 AND campaign_id = $2 AND shard = $3 AND stage = $4

-- fragment: columns
c.recipient_id, c.send_no, c.device, c.state, c.attempt, c.owner, c.lease_until, c.lease_until <= now() AS lease_over,
       c.provider, c.provider_message_id, c.code, c.recorded_at, c.delivered_at, c.opened_at, c.bounced_at, c.complained_at

-- name: read
-- Every send number and device of these; the caller picks.
SELECT
-- include: columns
  FROM claims c
 WHERE c.tenant = $1 AND c.frozen_at = $2 AND c.campaign_id = $3 AND c.shard = $4 AND c.page = $5 AND c.channel = $6
   AND c.recipient_id = ANY (string_to_array($7, E'\x1f'))

-- name: record_all
-- As `record` for claims that are there; how many it changed. Cheaper than the upsert, which is for what is left.
UPDATE claims c
   SET state = coalesce(r.state, $16::smallint), attempt = greatest(c.attempt, coalesce(r.attempt, $17::smallint)),
       provider = coalesce(r.provider, $19), provider_message_id = r.provider_message_id, code = coalesce(r.code, $20), recorded_at = now()
  FROM unnest(string_to_array($7, E'\x1f'), $8::smallint[], $9::text[], $10::smallint[], $11::smallint[], $12::uuid[], $13::text[],
              string_to_array($14, E'\x1f', E'\x1e'), $15::text[])
    AS r (recipient_id, send_no, device, state, attempt, owner, provider, provider_message_id, code)
 WHERE c.tenant = $1 AND c.frozen_at = $2 AND c.campaign_id = $3 AND c.shard = $4 AND c.page = $5 AND c.channel = $6
   AND c.recipient_id = ANY (string_to_array($7, E'\x1f')) AND c.recipient_id = r.recipient_id AND c.send_no = coalesce(r.send_no, 1)
   AND c.device = coalesce(r.device, '') AND c.state <> 4
   AND (coalesce(r.state, $16::smallint) = 4
        OR (coalesce(r.attempt, $17::smallint) = c.attempt AND coalesce(r.owner, $18::uuid) = c.owner AND coalesce(r.state, $16::smallint) > c.state))

-- name: record
-- domain.outcomes.merge: sent wins over everything; otherwise the owner's own attempt, and the higher rank. An upsert always
-- finds its row by the unique index, whatever the statistics say. What is the same in every row comes once ($16 to $20).
INSERT INTO claims AS c (tenant, frozen_at, campaign_id, shard, page, channel, recipient_id, send_no, device,
                         state, attempt, owner, provider, provider_message_id, code, lease_until, claimed_at, recorded_at)
SELECT $1, $2::timestamptz, $3, $4, $5, $6, r.recipient_id, coalesce(r.send_no, 1), coalesce(r.device, ''), coalesce(r.state, $16::smallint),
       coalesce(r.attempt, $17::smallint), coalesce(r.owner, $18::uuid), coalesce(r.provider, $19), r.provider_message_id,
       coalesce(r.code, $20), now(), now(), now()
  FROM unnest(string_to_array($7, E'\x1f'), $8::smallint[], $9::text[], $10::smallint[], $11::smallint[], $12::uuid[], $13::text[],
              string_to_array($14, E'\x1f', E'\x1e'), $15::text[])
    AS r (recipient_id, send_no, device, state, attempt, owner, provider, provider_message_id, code)
ON CONFLICT (tenant, frozen_at, campaign_id, shard, page, channel, recipient_id, send_no, device) DO UPDATE
   SET state = excluded.state, attempt = greatest(c.attempt, excluded.attempt), provider = excluded.provider,
       provider_message_id = excluded.provider_message_id, code = excluded.code, recorded_at = excluded.recorded_at
 WHERE c.state <> 4
   AND (excluded.state = 4
        OR (excluded.attempt = c.attempt AND excluded.owner = c.owner AND excluded.state > c.state))

-- name: settle
-- Judged by this server's clock, never by a worker's.
UPDATE claims SET state = 2, code = 'lease_over', recorded_at = now()
 WHERE tenant = $1 AND frozen_at = $2 AND campaign_id = $3 AND shard = $4 AND page = $5 AND channel = $6
   AND state = 0 AND lease_until <= now()

-- name: settle_orphans
-- Of whatever campaign or message: nobody who could record it is left.
UPDATE claims c SET state = 2, code = 'lease_over', recorded_at = now()
  FROM (SELECT tenant, frozen_at, campaign_id, shard, page, channel, recipient_id, send_no, device FROM claims
         WHERE state = 0 AND lease_until < now() - $1::interval ORDER BY lease_until LIMIT $2 FOR UPDATE SKIP LOCKED) o
 WHERE c.tenant = o.tenant AND c.frozen_at = o.frozen_at AND c.campaign_id = o.campaign_id AND c.shard = o.shard AND c.page = o.page
   AND c.channel = o.channel AND c.recipient_id = o.recipient_id AND c.send_no = o.send_no AND c.device = o.device

-- name: of_campaign
SELECT c.shard, c.page, c.channel,
-- include: columns
  FROM claims c
 WHERE c.tenant = $1 AND c.frozen_at = $2 AND c.campaign_id = $3
 ORDER BY c.shard, c.page, c.channel, c.recipient_id, c.send_no, c.device

-- name: places_of_recipient
-- Where they may have claims of that day, when claims are elsewhere. One still open may have been claimed since it last changed.
SELECT d.frozen_at, d.campaign_id, d.shard, d.page
  FROM (SELECT * FROM decisions WHERE person(tenant, recipient_id) = person($1, $2) OFFSET 0) d
 WHERE d.frozen_at < $3::date + 1 AND (d.changed_at >= $3::date OR d.state IN (0, 1))

-- name: of_shard
SELECT c.shard, c.page, c.channel,
-- include: columns
  FROM claims c
 WHERE c.tenant = $1 AND c.frozen_at = $2 AND c.campaign_id = $3 AND c.shard = $4 AND c.page = ANY ($5::int[]) AND c.channel = $6
 ORDER BY c.page, c.recipient_id, c.send_no, c.device

-- name: of_recipient
-- Through their decisions, which are indexed by person; an index of claims would cost every claim.
SELECT c.frozen_at, c.campaign_id, c.shard, c.page, c.channel,
-- include: columns
  FROM (SELECT * FROM decisions WHERE person(tenant, recipient_id) = person($1, $2) OFFSET 0) d
 CROSS JOIN LATERAL (
       SELECT * FROM claims
        WHERE tenant = $1 AND frozen_at = d.frozen_at AND campaign_id = d.campaign_id AND shard = d.shard AND page = d.page
          AND channel = ANY (ARRAY['email', 'sms', 'apns', 'fcm']) AND recipient_id = $2 OFFSET 0) c
 WHERE c.claimed_at >= $3::date AND c.claimed_at < $3::date + 1
 ORDER BY c.claimed_at

-- fragment: receipts
UPDATE claims c

-- fragment: received
  FROM unnest($1::text[], $2::timestamptz[], $3::uuid[], $4::int[], $5::int[], $6::text[], $7::text[], $8::smallint[], $9::text[], $10::timestamptz[])
    AS r (tenant, frozen_at, campaign_id, shard, page, channel, recipient_id, send_no, device, at)
 WHERE c.tenant = r.tenant AND c.frozen_at = r.frozen_at AND c.campaign_id = r.campaign_id AND c.shard = r.shard AND c.page = r.page
   AND c.channel = r.channel AND c.recipient_id = r.recipient_id AND c.send_no = r.send_no AND c.device = r.device

-- name: delivered
-- include: receipts
   SET delivered_at = least(c.delivered_at, r.at)
-- include: received

-- name: opened
-- include: receipts
   SET opened_at = least(c.opened_at, r.at)
-- include: received

-- name: bounced
-- include: receipts
   SET bounced_at = least(c.bounced_at, r.at)
-- include: received

-- name: complained
-- include: receipts
   SET complained_at = least(c.complained_at, r.at)
-- include: received

-- name: complaints
SELECT (SELECT count(*) FROM claims c
         WHERE c.campaign_id = $3 AND c.tenant = $1 AND c.frozen_at = $2 AND c.bounced_at IS NOT NULL) AS bounced,
       (SELECT count(*) FROM claims c
         WHERE c.campaign_id = $3 AND c.tenant = $1 AND c.frozen_at = $2 AND c.complained_at IS NOT NULL) AS complained

-- name: suppress
INSERT INTO suppressions AS s (tenant, channel, address_hash, reason, source) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, channel, address_hash) DO UPDATE SET reason = excluded.reason, source = excluded.source, at = now()
 WHERE excluded.reason IN ('complaint', 'stop') AND s.reason NOT IN ('complaint', 'stop')

-- name: unsuppress
DELETE FROM suppressions WHERE tenant = $1 AND channel = $2 AND address_hash = $3

-- name: suppression
SELECT address_hash, reason FROM suppressions WHERE tenant = $1 AND channel = $2 AND address_hash = ANY ($3::bytea[])
