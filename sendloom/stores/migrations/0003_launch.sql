-- A second person approves large campaigns: another key than the one that asked.
ALTER TABLE campaigns
    ADD COLUMN created_by  text NOT NULL DEFAULT '',
    ADD COLUMN approved_by text,
    ADD COLUMN approved_at timestamptz;

-- Security messages that may still wait to be called for: every marketing process asks for the oldest twice a second (LANE-3).
CREATE INDEX accepted_security_open ON accepted (accepted_at) WHERE message_class = 'security' AND closed_at IS NULL;

-- What receipts said of a campaign (CAMP-9). Only such rows are in it, so an outcome that is recorded touches no index.
CREATE INDEX claims_complaints ON claims (campaign_id) WHERE complained_at IS NOT NULL;
CREATE INDEX claims_bounces ON claims (campaign_id) WHERE bounced_at IS NOT NULL;
