-- Facts about many people come as columns, one look into each index for all of them, and are put together by the caller: a join
-- a row looks into seven indexes for each person, which took three times as long (18 us against 6 us a person). Columns of texts
-- come as one text each (`pool.joined`), because both server and driver look at every element of an array.

-- fragment: asked
-- Addresses and devices of channels that nobody asks for are not looked for: those given, else the category's. '*' is "all
-- marketing", so it says something about marketing categories only. A category that is not there is asked about with everything.
asked AS MATERIALIZED (
    SELECT coalesce(c.message_class = 'marketing', false) AS marketing,
           coalesce($4::text[], c.ladder, ARRAY['email', 'sms', 'apns', 'fcm']) AS ladder
      FROM (SELECT) one LEFT JOIN categories c ON c.tenant = $1 AND c.category = $2
)

-- fragment: facts
-- About the people of `l.ids`; $1 tenant, $2 category, $3 with caps, $4 channels.
r.*, a.*, s.*, p.*, k.*, d.*, u.*

-- fragment: looks
 CROSS JOIN LATERAL (SELECT string_agg(recipient_id, E'\x1f') AS r_ids,
                            string_agg(coalesce(locale, '') || E'\x1e' || coalesce(zone, ''), E'\x1f') AS r_places,
                            CASE WHEN count(erased_at) > 0 THEN array_agg(erased_at IS NOT NULL) END AS r_erased
                       FROM recipients WHERE tenant = $1 AND recipient_id = ANY (l.ids)) r
 CROSS JOIN LATERAL (SELECT string_agg(recipient_id, E'\x1f') AS a_ids, string_agg(channel, E'\x1f') AS a_channels,
                            array_agg(address_hash) AS a_hashes, array_agg(sealed) AS a_sealed,
                            CASE WHEN count(verified_at) > 0 THEN array_agg(verified_at IS NOT NULL) END AS a_verified,
                            CASE WHEN count(dead_reason) > 0 THEN array_agg(dead_reason) END AS a_dead
                       FROM addresses
                      WHERE tenant = $1 AND recipient_id = ANY (l.ids) AND channel = ANY ((SELECT ladder FROM asked)::text[])) a
 CROSS JOIN LATERAL (SELECT array_agg(channel) AS s_channels, array_agg(address_hash) AS s_hashes, array_agg(reason) AS s_reasons
                       FROM suppressions
                      WHERE tenant = $1 AND channel = ANY ((SELECT ladder FROM asked)::text[]) AND address_hash = ANY (a.a_hashes)) s
 CROSS JOIN LATERAL (SELECT string_agg(recipient_id, E'\x1f') AS p_ids, string_agg(channel, E'\x1f') AS p_channels
                       FROM preferences
                      WHERE tenant = $1 AND recipient_id = ANY (l.ids) AND opted_out
                        AND (category = $2 OR (category = '*' AND (SELECT marketing FROM asked)))) p
 CROSS JOIN LATERAL (SELECT string_agg(recipient_id, E'\x1f') AS k_ids, string_agg(channel, E'\x1f') AS k_channels
                       FROM consents WHERE tenant = $1 AND recipient_id = ANY (l.ids) AND category = $2 AND granted) k
 CROSS JOIN LATERAL (SELECT array_agg(recipient_id) AS d_ids, array_agg(device_id) AS d_devices, array_agg(channel) AS d_channels,
                            array_agg(sealed) AS d_sealed
                       FROM devices
                      WHERE (SELECT ladder && ARRAY['apns', 'fcm'] FROM asked)
                        AND tenant = $1 AND recipient_id = ANY (l.ids) AND disabled_at IS NULL) d
 CROSS JOIN LATERAL (SELECT array_agg(recipient_id) AS u_ids, array_agg(scope) AS u_scopes, array_agg(local_day) AS u_days
                       FROM cap_uses
                      WHERE $3::boolean AND tenant = $1 AND recipient_id = ANY (l.ids) AND local_day >= current_date - 8) u

-- name: people
WITH
-- include: asked
SELECT
-- include: facts
  FROM (SELECT string_to_array($5, E'\x1f') AS ids) l
-- include: looks

-- name: sample
-- Some pages evenly over the audience, and some of each evenly over the page, which is read no further than the last of them.
WITH
-- include: asked
, numbered AS (
    SELECT shard, page, size, row_number() OVER (ORDER BY shard, page) - 1 AS n, count(*) OVER () AS pages
      FROM list_pages WHERE tenant = $1 AND version_id = $5
), chosen AS (
    SELECT shard, page, size, ceil($6::numeric / pages)::int AS each FROM numbered
     WHERE floor(n * least(pages, $6)::numeric / pages) <> floor((n - 1) * least(pages, $6)::numeric / pages)
), picked AS (
    SELECT r.recipient_id, r.variables
      FROM chosen c
     CROSS JOIN LATERAL (
           SELECT recipient_id, variables, row_number() OVER (ORDER BY recipient_id) - 1 AS n
             FROM list_rows WHERE tenant = $1 AND version_id = $5 AND shard = c.shard AND page = c.page
            ORDER BY recipient_id LIMIT c.size - c.size / c.each + 1
     ) r
     WHERE floor(r.n * c.each::numeric / c.size) <> floor((r.n - 1) * c.each::numeric / c.size)
     LIMIT $6
), l AS MATERIALIZED (
    SELECT array_agg(recipient_id) AS ids, array_agg(variables) AS variables FROM picked
)
SELECT l.ids, l.variables,
-- include: facts
  FROM l
-- include: looks

-- name: page_people
WITH
-- include: asked
, l AS MATERIALIZED (
    SELECT array_agg(recipient_id) AS ids
      FROM (SELECT recipient_id FROM list_rows WHERE tenant = $1 AND version_id = $5 AND shard = $6 AND page = $7
             ORDER BY recipient_id) l
)
SELECT array_to_string(l.ids, E'\x1f') AS ids,
-- include: facts
  FROM l
-- include: looks
