-- name: upsert_recipients
-- A row that brings nothing new is not written again. $7: also bring back somebody who was erased.
INSERT INTO recipients AS r (tenant, recipient_id, locale, zone, attributes, internal)
SELECT $1, n.recipient_id, n.locale, n.zone, coalesce(n.attributes, '{}'), coalesce(n.internal, false)
  FROM unnest($2::text[], $3::text[], $4::text[], $5::jsonb[], $6::boolean[]) AS n (recipient_id, locale, zone, attributes, internal)
ON CONFLICT (tenant, recipient_id) DO UPDATE
   SET locale = coalesce(excluded.locale, r.locale), zone = coalesce(excluded.zone, r.zone),
       attributes = CASE WHEN $8::boolean THEN excluded.attributes ELSE r.attributes END,
       internal = CASE WHEN $9::boolean THEN excluded.internal ELSE r.internal END,
       updated_at = now(), erased_at = NULL
 WHERE (r.erased_at IS NULL OR $7::boolean)
   AND (r.erased_at IS NOT NULL OR $8::boolean OR $9::boolean
        OR coalesce(excluded.locale, r.locale) IS DISTINCT FROM r.locale OR coalesce(excluded.zone, r.zone) IS DISTINCT FROM r.zone)

-- name: known_addresses
-- Those that a list brings again unchanged need no new seal and no write.
SELECT a.recipient_id, a.channel, a.address_hash, a.verified_at IS NOT NULL AS verified
  FROM addresses a WHERE a.tenant = $1 AND a.recipient_id = ANY ($2::text[])

-- name: upsert_addresses
-- Another address is not verified because the one before it was, and not dead either. Nobody who was erased gets one back here.
INSERT INTO addresses AS a (tenant, recipient_id, channel, address_hash, sealed, verified_at)
SELECT $1, n.recipient_id, n.channel, n.address_hash, n.sealed, CASE WHEN n.verified THEN now() END
  FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::boolean[]) AS n (recipient_id, channel, address_hash, sealed, verified)
  JOIN LATERAL (SELECT FROM recipients x WHERE x.tenant = $1 AND x.recipient_id = n.recipient_id AND x.erased_at IS NULL OFFSET 0) r ON true
ON CONFLICT (tenant, recipient_id, channel) DO UPDATE
   SET address_hash = excluded.address_hash, sealed = excluded.sealed, updated_at = now(),
       verified_at = CASE WHEN a.address_hash = excluded.address_hash THEN coalesce(a.verified_at, excluded.verified_at) ELSE excluded.verified_at END,
       dead_at = CASE WHEN a.address_hash = excluded.address_hash THEN a.dead_at END,
       dead_reason = CASE WHEN a.address_hash = excluded.address_hash THEN a.dead_reason END

-- name: get
SELECT recipient_id, locale, zone, attributes, internal, created_at, updated_at, erased_at
  FROM recipients WHERE tenant = $1 AND recipient_id = $2

-- name: addresses
SELECT a.channel, a.address_hash, a.sealed, a.verified_at, a.dead_at, a.dead_reason, s.reason AS suppressed
  FROM addresses a
  LEFT JOIN suppressions s ON s.tenant = a.tenant AND s.channel = a.channel AND s.address_hash = a.address_hash
 WHERE a.tenant = $1 AND a.recipient_id = $2 ORDER BY a.channel

-- name: by_address
SELECT recipient_id FROM (SELECT * FROM addresses WHERE address_hash = $3 OFFSET 0) a WHERE tenant = $1 AND channel = $2 ORDER BY recipient_id

-- name: verify_address
UPDATE addresses SET verified_at = coalesce(verified_at, now()), updated_at = now()
 WHERE tenant = $1 AND recipient_id = $2 AND channel = $3 AND address_hash = $4

-- name: mark_dead
-- The hash once more: who waits for the row finds it with its new address.
UPDATE addresses a SET dead_at = now(), dead_reason = $4, updated_at = now()
  FROM (SELECT tenant, recipient_id, channel FROM addresses WHERE address_hash = $3 OFFSET 0) f
 WHERE f.tenant = $1 AND f.channel = $2 AND a.tenant = f.tenant AND a.recipient_id = f.recipient_id AND a.channel = f.channel
   AND a.address_hash = $3 AND a.dead_at IS NULL

-- name: remove_address
DELETE FROM addresses WHERE tenant = $1 AND recipient_id = $2 AND channel = $3

-- name: devices
SELECT device_id, channel, registered_at, last_seen_at, disabled_at FROM devices WHERE tenant = $1 AND recipient_id = $2 ORDER BY device_id

-- name: lock_token
-- An app registers twice at once when it starts: one after the other, or the second meets a unique token.
SELECT pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), 0))

-- name: free_token
-- A device moves with its owner: the token belongs to whoever registered it last. As in `mark_dead`, one that has another by now stays.
DELETE FROM devices d USING (SELECT tenant, recipient_id, device_id, channel FROM devices WHERE token_hash = $3 OFFSET 0) f
 WHERE f.tenant = $1 AND f.channel = $2 AND (f.recipient_id <> $4 OR f.device_id <> $5)
   AND d.tenant = f.tenant AND d.recipient_id = f.recipient_id AND d.device_id = f.device_id AND d.token_hash = $3

-- name: register_device
-- As with `lock_recipient`: none is left to who is being erased.
INSERT INTO devices AS d (tenant, recipient_id, device_id, channel, token_hash, sealed)
SELECT $1, r.recipient_id, $3, $4, $5, $6 FROM recipients r WHERE r.tenant = $1 AND r.recipient_id = $2 AND r.erased_at IS NULL
   FOR SHARE
ON CONFLICT (tenant, recipient_id, device_id) DO UPDATE
   SET channel = excluded.channel, token_hash = excluded.token_hash, sealed = excluded.sealed, last_seen_at = now(), disabled_at = NULL,
       registered_at = CASE WHEN d.token_hash = excluded.token_hash AND d.disabled_at IS NULL THEN d.registered_at ELSE now() END
RETURNING true

-- name: disable_device
-- Not if it was registered again after what the provider says it knows.
UPDATE devices d SET disabled_at = now()
  FROM (SELECT tenant, recipient_id, device_id, channel FROM devices WHERE token_hash = $3 OFFSET 0) f
 WHERE f.tenant = $1 AND f.channel = $2 AND d.tenant = f.tenant AND d.recipient_id = f.recipient_id AND d.device_id = f.device_id
   AND d.token_hash = $3 AND d.registered_at <= $4 AND d.disabled_at IS NULL

-- name: remove_device
DELETE FROM devices WHERE tenant = $1 AND recipient_id = $2 AND device_id = $3

-- name: set_preferences
INSERT INTO preferences AS p (tenant, recipient_id, category, channel, opted_out, source)
SELECT $1, $2, n.category, n.channel, n.opted_out, n.source
  FROM unnest($3::text[], $4::text[], $5::boolean[], $6::text[]) AS n (category, channel, opted_out, source)
ON CONFLICT (tenant, recipient_id, category, channel) DO UPDATE
   SET opted_out = excluded.opted_out, source = excluded.source, changed_at = now()
 WHERE p.opted_out <> excluded.opted_out OR p.source <> excluded.source

-- name: preferences
SELECT category, channel, opted_out, source, changed_at FROM preferences WHERE tenant = $1 AND recipient_id = $2 ORDER BY category, channel

-- name: opted_out
-- Of these, who has opted out of the category (or, for marketing, of all of it) on this channel.
SELECT DISTINCT recipient_id FROM preferences
 WHERE tenant = $1 AND recipient_id = ANY ($2::text[]) AND opted_out AND channel IN ($4, '*')
   AND (category = $3 OR (category = '*' AND EXISTS (
        SELECT FROM categories c WHERE c.tenant = $1 AND c.category = $3 AND c.message_class = 'marketing')))

-- name: recent_opt_outs
SELECT recipient_id, category, channel FROM (SELECT * FROM preferences WHERE opted_out AND changed_at >= $2 OFFSET 0) p WHERE tenant = $1

-- name: lock_recipient
-- An erasure and this wait for each other: nothing is left of who is being erased.
SELECT FROM recipients WHERE tenant = $1 AND recipient_id = $2 FOR SHARE

-- name: consent
-- Every statement of consent stays as an event; the newest one counts.
WITH said AS (
    INSERT INTO consent_events (tenant, recipient_id, category, channel, at, granted, source, wording)
    SELECT $1, n.recipient_id, n.category, n.channel, n.at, n.granted, n.source, n.wording
      FROM unnest($2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::boolean[], $7::text[], $8::text[])
        AS n (recipient_id, category, channel, at, granted, source, wording)
      JOIN LATERAL (SELECT FROM recipients x WHERE x.tenant = $1 AND x.recipient_id = n.recipient_id AND x.erased_at IS NULL OFFSET 0) r ON true
    ON CONFLICT DO NOTHING
    RETURNING recipient_id, category, channel, at, granted, source, wording
)
INSERT INTO consents AS c (tenant, recipient_id, category, channel, granted, at, source, wording)
SELECT DISTINCT ON (s.recipient_id, s.category, s.channel) $1, s.recipient_id, s.category, s.channel, s.granted, s.at, s.source, s.wording
  FROM said s ORDER BY s.recipient_id, s.category, s.channel, s.at DESC
ON CONFLICT (tenant, recipient_id, category, channel) DO UPDATE
   SET granted = excluded.granted, at = excluded.at, source = excluded.source, wording = excluded.wording
 WHERE excluded.at >= c.at

-- name: consents
SELECT category, channel, granted, at, source, wording FROM consents WHERE tenant = $1 AND recipient_id = $2 ORDER BY category, channel

-- name: suppressions
SELECT channel, address_hash, reason, source, at FROM suppressions
 WHERE tenant = $1 AND ($2::text IS NULL OR channel = $2) AND (channel, address_hash) > ($3, $4)
 ORDER BY channel, address_hash LIMIT $5

-- name: erase
UPDATE recipients SET erased_at = coalesce(erased_at, now()), locale = NULL, zone = NULL, attributes = '{}', internal = false, updated_at = now()
 WHERE tenant = $1 AND recipient_id = $2

-- name: lock_uploads
-- Lists that are being written with them, or copied from one that has them: what is on its way ends first, so that what it wrote
-- is found; what comes after finds nothing left of them.
SELECT FROM list_versions v
 WHERE v.tenant = $1 AND v.state = 'uploading'
   AND (v.format = 'written' OR EXISTS (SELECT FROM list_staging s WHERE s.tenant = $1 AND s.version_id = v.version_id AND s.recipient_id = $2))
 ORDER BY v.version_id FOR KEY SHARE OF v

-- name: erase_addresses
DELETE FROM addresses WHERE tenant = $1 AND recipient_id = $2

-- name: erase_devices
DELETE FROM devices WHERE tenant = $1 AND recipient_id = $2

-- name: erase_preferences
DELETE FROM preferences WHERE tenant = $1 AND recipient_id = $2

-- name: erase_consents
DELETE FROM consents WHERE tenant = $1 AND recipient_id = $2

-- name: erase_consent_events
DELETE FROM consent_events WHERE tenant = $1 AND recipient_id = $2

-- name: erase_cap_uses
DELETE FROM cap_uses WHERE tenant = $1 AND recipient_id = $2

-- name: erase_list_variables
UPDATE list_rows SET variables = NULL WHERE person(tenant, recipient_id) = person($1, $2) AND variables IS NOT NULL

-- name: erase_staged
DELETE FROM list_staging s USING list_versions v
 WHERE v.tenant = $1 AND v.state = 'uploading' AND s.tenant = $1 AND s.version_id = v.version_id AND s.recipient_id = $2

-- name: erase_decisions
-- Pending and deferred only: what was sent was sent. Summaries of the pages touched are recomputed by the caller.
UPDATE decisions d SET state = 9, reason = 'erased', due_at = NULL, changed_at = now()
 WHERE person(d.tenant, d.recipient_id) = person($1, $2) AND d.state IN (0, 1)
RETURNING d.frozen_at, d.campaign_id, d.shard, d.page

-- name: erase_payloads
UPDATE deliveries p SET payload = NULL
 WHERE p.tenant = $1 AND p.recipient_id = $2 AND p.payload IS NOT NULL
   AND p.frozen_at = ANY (ARRAY(SELECT d.frozen_at FROM decisions d WHERE person(d.tenant, d.recipient_id) = person($1, $2)))
   AND p.campaign_id = ANY (ARRAY(SELECT d.campaign_id FROM decisions d WHERE person(d.tenant, d.recipient_id) = person($1, $2)))

-- name: summarise
SELECT summarise_pages($1, $2, $3, $4::int[], $5::int[])
