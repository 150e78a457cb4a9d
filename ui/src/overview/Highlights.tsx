/** Three episodes worth a look: newly solved, newly broken, most surprising. */

import { EpisodeOutcome } from '../common/Status'
import type { Highlight } from '../data/types'
import { NO_FILTER, openEpisode } from '../state/place'
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
            <Way id={found.row.episode_id} task={found.row.task_id} name={t('look_after')} />
            {found.before && <Way id={found.before} task={found.row.task_id} name={t('look_before')} />}
          </p>
        </>
      )}
    </article>
  )
}

/** Opens the episode among those of its task; nothing where a report does not hold it. */
function Way({ id, task, name }: { id: string; task: string; name: string }) {
  const source = useSource()
  if (!source.holds(id)) return null
  return <button onClick={() => openEpisode(id, source.served ? { ...NO_FILTER, task_id: task } : {})}>{name}</button>
}
