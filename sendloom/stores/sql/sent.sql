-- name: write
-- `sent` wins over everything, whoever says it. The decisions move only when every claim was there to be recorded: the caller then
-- asks again in two steps, and no decision is ever ahead of its claim.
WITH recorded AS (
    UPDATE claims c
       SET state = 4, provider = $9, provider_message_id = r.provider_message_id, code = NULL, recorded_at = now()
      FROM unnest(string_to_array($7, E'\x1f'), string_to_array($8, E'\x1f', E'\x1e')) AS r (recipient_id, provider_message_id)
     WHERE c.tenant = $1 AND c.frozen_at = $2 AND c.campaign_id = $3 AND c.shard = $4 AND c.page = $5 AND c.channel = $6
       AND c.recipient_id = ANY (string_to_array($7, E'\x1f')) AND c.recipient_id = r.recipient_id AND c.send_no = 1 AND c.device = ''
       AND c.state <> 4
    RETURNING 1
), moved AS (
    UPDATE decisions d
       SET state = $11::smallint, due_at = NULL, changed_at = now()
     WHERE d.tenant = $1 AND d.frozen_at = $2 AND d.campaign_id = $3 AND d.shard = $4 AND d.page = $5
       AND d.recipient_id = ANY (string_to_array($7, E'\x1f')) AND ($10::int >> d.state) & 1 = 1
       AND (SELECT count(*) FROM recorded) = cardinality(string_to_array($7, E'\x1f'))
)
SELECT count(*) FROM recorded
