/** The page that lists recent runs. Its field filters them, or takes a folder at any of the three levels. */

import { useMemo, useState } from 'preact/hooks'

import { Empty } from '../common/Notice'
import { RunStatus } from '../common/Status'
import type { Open, RunInfo } from '../data/types'
import { openRun } from '../state/place'
import { duration, integer, moment, number } from '../text/format'
import { t } from '../text/translate'
import { isOutside, runsMeant } from './runsMeant'

export function RunTable({ open, runs }: { open: Open | null; runs: RunInfo[] }) {
  const [wanted, setWanted] = useState('')
  const root = open?.root ?? ''
  const shown = useMemo(() => runsMeant(runs, wanted, root), [runs, wanted, root])
  const choose = (event: SubmitEvent): void => {
    event.preventDefault()
    if (shown[0] && shown.length === 1) openRun(shown[0].run)
  }
  return (
    <main class="page">
      <form class="page-heading" onSubmit={choose}>
        <h1>{t('runs')}</h1>
        <input
          type="search"
          data-search
          value={wanted}
          placeholder={t('find_run')}
          aria-label={t('find_run')}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
        <span class="faint path">{root}</span>
      </form>
      {shown.length === 0 ? (
        <NothingShown outside={isOutside(wanted, root) ? wanted.trim() : ''} root={root} isFiltered={runs.length > 0} />
      ) : (
        <div class="table-scroller" tabIndex={0} role="region" aria-label={t('runs')}>
          <table class="run-table">
            <thead>
              <tr>
                {(['experiment', 'status', 'started', 'at_work', 'model', 'backbone', 'steps', 'episodes', 'reward'] as const).map((word) => (
                  <th key={word} scope="col" title={word === 'at_work' ? t('at_work_hint') : undefined}>
                    {t(word)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((info) => (
                <RunRow key={info.run} info={info} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </main>
  )
}

/** Why no run is listed; a folder that is not served is opened by a viewer of its own. */
function NothingShown({ outside, root, isFiltered }: { outside: string; root: string; isFiltered: boolean }) {
  if (outside) return <Empty title={t('outside', { root })} hint={t('outside_hint', { command: `astune view ${outside}` })} />
  return <Empty title={t(isFiltered ? 'no_run_match' : 'no_runs')} hint={t(isFiltered ? 'no_run_match_hint' : 'no_runs_hint')} />
}

function RunRow({ info }: { info: RunInfo }) {
  return (
    <tr onClick={() => openRun(info.run)}>
      <th scope="row">
        <button class="link" onClick={() => openRun(info.run)}>
          {info.experiment}
        </button>
        <div class="faint">{info.name}</div>
      </th>
      <td>
        <RunStatus status={info.status} />
        {info.message && <div class="faint run-message">{info.message}</div>}
        {info.problems.length > 0 && <div class="warn">{info.problems[0]}</div>}
      </td>
      <td>{moment(info.created_at)}</td>
      <td class="number">{duration(info.elapsed_s)}</td>
      <td>{info.model ?? '–'}</td>
      <td>{info.backbone ?? '–'}</td>
      <td class="number">{integer(info.steps)}</td>
      <td class="number">{integer(info.episodes)}</td>
      <td class="number">{number(info.reward)}</td>
    </tr>
  )
}
