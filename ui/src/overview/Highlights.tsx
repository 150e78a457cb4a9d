/** Three episodes worth a look: newly solved, newly broken, most surprising. */

import { EpisodeOutcome } from '../common/Status'
import type { Highlight } from '../data/types'
import { openEpisode } from '../state/place'
import { useSource } from '../state/source'
import { number, signed } from '../text/format'
import { t } from '../text/translate'

const HELD_OUT = ['solved', 'broken'] as const

interface Props {
  episodes: Highlight[]
  /** Whether held-out tasks were measured before and after. */
  isMeasured: boolean
}

export function Highlights({ episodes, isMeasured }: Props) {
  const kinds = [...(isMeasured ? HELD_OUT : []), 'surprising'] as const
  if (episodes.length === 0 && !isMeasured) return null
  return (
    <section>
      <h3>{t('worth_a_look')}</h3>
      <div class="highlights">
        {kinds.map((kind) => (
          <Card key={kind} kind={kind} found={episodes.find((episode) => episode.kind === kind) ?? null} />
        ))}
      </div>
    </section>
  )
}

function Card({ kind, found }: { kind: Highlight['kind']; found: Highlight | null }) {
  const source = useSource()
  return (
    <article class="highlight" data-highlight={kind}>
      <h4 title={t(`look_${kind}_hint`)}>
        {t(`look_${kind}`)}
        {found && <EpisodeOutcome status={found.row.status} />}
      </h4>
      {found === null ? (
        <p class="faint">{t(`none_${kind}`)}</p>
      ) : (
        <>
          <p class="highlight-question">{found.question}</p>
          <p class="highlight-answer">{found.answer}</p>
          <p class="faint">
            {found.row.task_id} · {t('step')} {found.row.step} · {t('reward')} {number(found.row.reward)}
            {found.row.advantage !== null && ` · ${t('advantage')} ${signed(found.row.advantage)}`}
          </p>
          <p class="highlight-ways">
            <Way id={found.row.episode_id} name={t('look_after')} is={source.holds(found.row.episode_id)} />
            {found.before && <Way id={found.before} name={t('look_before')} is={source.holds(found.before)} />}
          </p>
        </>
      )}
    </article>
  )
}

/** Nothing where a report does not hold the episode. */
function Way({ id, name, is }: { id: string; name: string; is: boolean }) {
  return is ? <button onClick={() => openEpisode(id)}>{name}</button> : null
}
